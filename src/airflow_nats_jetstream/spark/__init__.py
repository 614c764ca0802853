# SPDX-License-Identifier: Apache-2.0
"""Spark as a task uses it: the master of a cluster, a Spark Connect server, and the application of a claim."""
