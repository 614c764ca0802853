# SPDX-License-Identifier: Apache-2.0
"""What others are told: metrics, spans, lineage, and the changes of runs, tasks and assets."""
