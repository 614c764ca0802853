# SPDX-License-Identifier: Apache-2.0
"""Take messages as claims."""
