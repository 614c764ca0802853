"""Decoding JSON exactly, compared with Spark's ``from_json`` alone, which is what ``decoded`` did at first.

Both read the same payloads, which Spark has cached, so that only decoding and planning are measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from benchmarks.comparison import Comparison
from benchmarks.spark import drained, session
from pyspark_jetstream import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES = 1_000_000


@dataclass(frozen=True)
class Shape:
    """Payloads of one kind.

    payload:  SQL of the payload, from the column ``id``.
    """

    what: str
    schema: str
    payload: str

    def rows(self) -> str:
        return f"CAST(concat('{{', {self.payload}, '}}') AS BINARY) AS data"


ID = """'"id": ', id"""
CUSTOMER = """'"customer": "customer ', id % 1000, '"'"""
PRICE = """'"price": ', id % 1000, '.25'"""
TIME = """'"ordered_at": "2026-11-21T03:', lpad(id % 60, 2, '0'), ':00Z"'"""
LINES = """'"paid": true, "lines": [{"sku": "A', id % 77, '"}, {"sku": "B"}]'"""
COMMA = ", ', ', "

SHAPES = [
    Shape("INT", "id INT", ID),
    Shape("INT and STRING", "id INT, customer STRING", ID + COMMA + CUSTOMER),
    Shape("DOUBLE", "price DOUBLE", PRICE),
    Shape("TIMESTAMP", "ordered_at TIMESTAMP", TIME),
    Shape("DECIMAL", "price DECIMAL(10,2)", PRICE),
    Shape(
        "six columns with an array",
        "id INT, customer STRING, price DOUBLE, paid BOOLEAN, ordered_at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING>>",
        COMMA.join((ID, CUSTOMER, PRICE, TIME, LINES)),
    ),
]


def decode(url: str, shape: Shape) -> Comparison:  # noqa: ARG001 - needs no server
    with session() as spark:
        messages = spark.range(0, MESSAGES, 1, 2).selectExpr("id AS sequence", shape.rows()).persist()
        messages.count()

        def ours() -> int:
            return drained(decoded(messages, shape.schema)[0], MESSAGES)

        def baseline() -> int:
            return drained(from_json(messages, shape.schema), MESSAGES)

        for _ in range(2):
            ours(), baseline()
        return Comparison(f"decode JSON exactly, {shape.what}", required=0.8, aim=1).run(ours, baseline)


def from_json(messages: DataFrame, schema: str) -> DataFrame:
    """The payloads in an array with a second element, which shows that nothing follows the payload."""
    whole = f"all ARRAY<STRUCT<{schema}, mark: BOOLEAN>>, corrupt STRING"
    text = F.try_validate_utf8(F.col("data").cast("string"))
    wrapped = F.concat(F.lit('{"all":['), text, F.lit('\n,{"mark":true}]}'))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    found = messages.select("*", F.explode(F.array(F.from_json(wrapped, whole, options))).alias("found"))
    one = "size(found.all) = 2 AND found.all[1].mark AND found.all[0] IS NOT NULL AND found.corrupt IS NULL"
    first = F.get("found.all", 0)
    return found.filter(one).select("sequence", first.alias("row")).select("sequence", "row.*").drop("mark")


BENCHMARKS: Sequence[Callable[[str], Comparison]] = [functools.partial(decode, shape=shape) for shape in SHAPES]
