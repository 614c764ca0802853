# SPDX-License-Identifier: Apache-2.0
"""What streams and consumers must be, so that claims of them can be settled, and what users may do."""
