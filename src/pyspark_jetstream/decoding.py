"""How payloads of one format become columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Decoding:
    """How one format is decoded.

    fields:  the names of the columns.
    decode:  from ``data`` to a column that the others are taken from.
    value:   from that to a struct of the fields.
    reason:  from that and ``data`` to what is wrong, null for what is right.
    """

    fields: list[str]
    decode: Callable[[Column], Column]
    value: Callable[[Column], Column]
    reason: Callable[[Column, Column], Column]
