# SPDX-License-Identifier: Apache-2.0
"""The operators: one file for each kind of object (stream, consumer, message, …), and helper modules."""
