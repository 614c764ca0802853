# SPDX-License-Identifier: Apache-2.0
"""Changes by hand: reset or delete a consumer, give it to another ledger, release claims."""
