# SPDX-License-Identifier: Apache-2.0
"""What is checked of a whole DAG: the tasks between a pull sensor and the tasks that settle its claims."""
