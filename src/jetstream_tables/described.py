# SPDX-License-Identifier: Apache-2.0
"""A table from a mapping of plain values, as YAML and templates have them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from jetstream_client.errors import InvalidValue
from jetstream_tables.delta import DeltaTable
from jetstream_tables.iceberg import IcebergTable
from jetstream_tables.sql import SqlTable
from jetstream_tables.table import ExactTable

KINDS: dict[str, type[ExactTable]] = {"delta": DeltaTable, "iceberg": IcebergTable, "sql": SqlTable}


def table_of(described: object) -> ExactTable:
    """Return a table.

    described:  ``type``, which is ``delta``, ``iceberg`` or ``sql``, and the parameters of
                :class:`~jetstream_tables.DeltaTable`, :class:`~jetstream_tables.IcebergTable` or
                :class:`~jetstream_tables.SqlTable`, such as ``{"type": "delta", "uri": "s3://lake/orders"}``. A table
                is returned unchanged.

    Raises:
        InvalidValue: the type or a parameter is missing, unknown or invalid. The error shows no value, because it may
            be a secret.
    """
    if isinstance(described, ExactTable):
        return described
    known = ", ".join(map(repr, KINDS))
    if not isinstance(described, Mapping):
        remedy = "give a DeltaTable, an IcebergTable, a SqlTable, or a mapping such as {'type': 'delta', 'uri': '…'}"
        raise InvalidValue("table", type(described), remedy)
    given = dict(described)
    kind = KINDS.get(str(name := given.pop("type", None)))
    if kind is None:
        raise InvalidValue("table['type']", name, f"give one of {known}")
    parameters = inspect.signature(kind).parameters
    for each in given:
        if each not in parameters:
            raise InvalidValue("table", each, f"a table of type {name!r} has only {', '.join(parameters)}")
    for each, parameter in parameters.items():
        if parameter.default is parameter.empty and not given.get(each):
            raise InvalidValue("table", f"without {each}", f"a table of type {name!r} needs {each!r}")
    return kind(**given)
