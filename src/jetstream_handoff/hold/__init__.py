# SPDX-License-Identifier: Apache-2.0
"""Hold a claim while its work runs, then settle, fail or release it."""
