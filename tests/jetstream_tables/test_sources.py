"""Rows of other libraries: each message with its values is in a table of each format."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from jetstream_client.stream import Stream
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Format
from tests.jetstream_tables.steps import begin, counted, rows


def of_polars(given: pa.Table) -> Any:
    frame = pl.from_arrow(given)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(shop=pl.lit("north"), moment=pl.col("timestamp"))


def of_duckdb(given: pa.Table) -> Any:
    database = duckdb.connect()
    database.register("given", given)
    return database.sql("select *, 'north' as shop, timestamp as moment from given")


def of_pandas(given: pa.Table) -> Any:
    frame = given.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    return frame.assign(shop="north", moment=frame["timestamp"])


@pytest.mark.parametrize("source", [of_polars, of_duckdb, of_pandas])
async def test_rows_of(stream: Stream, lake: Format, holds: ExitStack, source: Callable[[pa.Table], Any]) -> None:
    await publish(stream, 20)
    first, second = await take(stream, messages_per_claim=10)
    for claim in (first, second):  # the first one creates the table
        held = begin(holds, stream, claim)
        assert counted(held.append_to(lake.table(), source(rows(held)))) == (10, 0)
    expected = [(each, 10 * each, "north", True) for each in range(1, 21)]
    assert sorted(lake.query('"_sequence", amount, shop, moment = "_timestamp"')) == expected
