# SPDX-License-Identifier: Apache-2.0
"""Tables that contain each message exactly once: what ``claim.append_to`` appends to.

Importing this package loads none of the libraries that read and write tables.
"""

from jetstream_tables.delta import DeltaTable
from jetstream_tables.iceberg import IcebergTable
from jetstream_tables.s3 import S3
from jetstream_tables.sql import SqlTable

__all__ = ["S3", "DeltaTable", "IcebergTable", "SqlTable"]
