# SPDX-License-Identifier: Apache-2.0
"""Stored messages as Arrow record batches, without Spark and without Java.

Importing this module loads only the standard library, because orchestrators import it to parse a task.
"""
