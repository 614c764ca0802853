# SPDX-License-Identifier: Apache-2.0
"""The ledger: a record for each consumer, a receipt for each claim, and the streams that store them."""
