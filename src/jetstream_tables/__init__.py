# SPDX-License-Identifier: Apache-2.0
"""Tables that contain each message exactly once: what ``claim.append_to`` appends to.

Importing this package loads none of the libraries that read and write tables.
"""

from jetstream_tables.delta import DeltaTable

__all__ = ["DeltaTable"]
