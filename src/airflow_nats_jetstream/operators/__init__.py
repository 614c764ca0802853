# SPDX-License-Identifier: Apache-2.0
"""Operators: one file for each thing that they act on."""
