# SPDX-License-Identifier: Apache-2.0
"""One key of a key-value bucket, and objects that messages refer to."""
