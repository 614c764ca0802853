# SPDX-License-Identifier: Apache-2.0
"""Dead letters: storing, listing, replaying and discarding them."""
