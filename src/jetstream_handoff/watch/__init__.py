# SPDX-License-Identifier: Apache-2.0
"""What can be seen without changing anything: claims, what is stuck, and whether a setup works."""
