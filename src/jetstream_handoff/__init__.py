# SPDX-License-Identifier: Apache-2.0
"""The hand-off: take, hold and settle claims, recorded in a ledger. This package knows neither an orchestrator nor
Spark."""
