# SPDX-License-Identifier: Apache-2.0
"""The command line, ``python -m jetstream_handoff``, and its commands for programs with other ways to connect."""
