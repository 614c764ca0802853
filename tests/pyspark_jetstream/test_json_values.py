"""JSON values and column types: the table in the documentation, and a comparison with a second decoder.

`make decoding` compares 100,000 generated payloads, `make test` a few hundred. WRITE=1 writes the page.
"""

import json
import os
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 - short for the many types

from pyspark_jetstream import decoded
from pyspark_jetstream.compat import ADMISSION_CONTROL
from pyspark_jetstream.exact_json.scalars import EpochUnit
from tests.jetstream_arrow.test_json import arrow, outcome
from tests.pyspark_jetstream.generated import a_payload, a_struct
from tests.pyspark_jetstream.plain import AsJson, Malformed, Plain, same

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json-values.md"
SEED = int(os.environ.get("SEED") or 0)
CASES = int(os.environ.get("CASES") or 0)
ZONE = "Europe/Berlin"


@dataclass(frozen=True)
class Section:
    """A part of the page: each of the values in a column of each type."""

    title: str
    types: tuple[str, ...]
    values: tuple[str, ...]
    epoch_unit: str | None = None


TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
EPOCHS = ("0", "-1", "1763694000", "1763694000.5", "1763694000.1234567", "1763694000123", "1763694000123456",
          "1763694000123456000", "1763694000123456789", '"1763694000"')  # fmt: skip
SECTIONS = (
    Section(
        "Numbers and booleans",
        ("BOOLEAN", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "STRING"),
        (
            "null", "true", "0", "12", "-0.0", "16777217", "4294967296", "9007199254740993", "9223372036854775808",
            "12.0", "12.34", "12.340", "12.345", "12.3400000000000000001", "1e2", "1e-400", "1e400", "NaN",
        ),
    ),
    Section(
        "Strings",
        ("BOOLEAN", "INT", "DOUBLE", "DECIMAL(10,2)", "STRING", "BINARY", "DATE", "TIMESTAMP"),
        (
            '"x"', '""', '"true"', '"12"', '"12.34"', '"12.345"', '"1,5"', '"NaN"', '"QQ=="', '"QR=="', '"\\u00e4"',
            '"\\ud800"',
        ),
    ),
    Section(
        "Dates and times",
        TIMES,
        (
            '"2026-11-21"', '"20261121"', '"2026-02-29"', '"0000-01-01"', '"10000-01-01"', '"2026-11"', '"21.11.2026"',
            '"2026-11-21T03:00:00Z"', '"2026-11-21 03:00:00Z"', '"2026-11-21T03:00Z"', '"2026-11-21T03:00:00+0530"',
            '"2026-11-21T03:00:00"', '"2026-11-21T03:00:00.123456"', '"2026-11-21T03:00:00.1234567Z"',
            '"2026-11-21T24:00:00Z"', '"2026-03-29T02:30:00"', '"2026-03-29T02:30:00+01:00"', '"2026-10-25T02:30:00"',
            '"2026-10-25T02:30:00+01:00"', '"9999-12-31T23:59:59.999999Z"', '"57873-01-01T00:00:00Z"', "20261121",
        ),
    ),
    Section("Numbers as times, without a unit", TIMES, EPOCHS),
    *(
        Section(f'Numbers as times, with `epoch_unit="{unit}"`', ("TIMESTAMP",), EPOCHS, unit)
        for unit in get_args(EpochUnit)
    ),
    Section(
        "Arrays and objects",
        ("ARRAY<INT>", "ARRAY<DECIMAL(4,1)>", "STRUCT<a: INT>", "MAP<STRING, INT>", "STRING"),
        (
            "[]", "[1, 2]", "[1, null]", '[1, "x"]', "[0.5, 1.25]", "{}", '{"a": 1}', '{"a": null}', '{"A": 1}',
            '{"b": 1}', '{"a": 1, "b": 2}', '{"a": 1, "a": 2}', '{"a": "x"}', '{"a": [1e400]}',
        ),
    ),
)  # fmt: skip

ITEM = T.StructType([T.StructField("d", T.IntegerType(), nullable=False)])
WHOLE = T.StructType(
    [
        T.StructField("id", T.IntegerType(), nullable=False),
        T.StructField("name", T.StringType()),
        T.StructField("c", ITEM),
        T.StructField("l", T.ArrayType(ITEM, containsNull=False)),
        T.StructField("m", T.MapType(T.StringType(), ITEM, valueContainsNull=False)),
    ]
)
WHOLE_SQL = """
id INT NOT NULL,
name STRING,
c STRUCT<d: INT NOT NULL>,
l ARRAY<STRUCT<d: INT NOT NULL>>,         -- without null
m MAP<STRING, STRUCT<d: INT NOT NULL>>    -- without null
"""
PAYLOADS = (
    '{"id": 1}', '{"id": 1, "other": 2}', '{"id": null}', '{"name": "x"}', '{"ID": 1, "name": "x"}',
    '{"id": 1, "Name": "x"}', "{}", '{"other": 1}', '{"id": 1, "c": {"d": 2}}', '{"id": 1, "c": {"d": null}}',
    '{"id": 1, "c": {"e": 2}}', '{"id": 1, "c": {"d": 2, "e": 3}}', '{"id": 1, "l": [{"d": 2}]}',
    '{"id": 1, "l": [null]}', '{"id": 1, "l": [{"d": null}]}', '{"id": 1, "m": {"k": null}}',
    '{"id": 1, "m": {"k": {"d": null}}}', '{"id": 1, "id": 2}', '{"id": 1} {"id": 2}', '{"id": 1', "[1]", "null", "",
)  # fmt: skip
WHOLE_ARROW = pa.schema([pa.field(each.name, arrow(each.dataType), each.nullable) for each in WHOLE.fields])
WITHOUT_SPARK = """\
`jetstream_arrow.decoded`, and everything that uses it, decodes JSON with Python's parser. It makes
the same of every value in the tables above, except for those in this table. Moreover:

- A TIMESTAMP without an offset is malformed unless `options={"timeZone": "…"}` names its time zone.
  With Spark, the session's time zone is the default. There are no other options.
- An integer of more than 4,300 digits, in any field, makes its payload malformed.
- Reasons name the same field and the same cause, but some words differ."""


def outcomes(
    spark: SparkSession, schema: T.StructType, payloads: list[str], **changes: Any
) -> list[dict[str, Any] | str]:
    """Return what each payload becomes: its row, or the reason why it is malformed."""
    messages = spark.createDataFrame([(n, each.encode()) for n, each in enumerate(payloads)], "n INT, data BINARY")
    parts = decoded(messages, schema, into="row", options={"timeZone": ZONE}, **changes)
    good, malformed = (part.collect() for part in parts)
    assert len(good) + len(malformed) == len(payloads)
    found = {each.n: each.row.asDict(recursive=True) for each in good} | {each.n: each.reason for each in malformed}
    return [found[number] for number in range(len(payloads))]


def without_spark(schema: Any, payload: str, **changes: Any) -> dict[str, Any] | str:
    return outcome(schema, payload, options={"timeZone": ZONE}, **changes)


def same_outcome(found: dict[str, Any] | str, alone: dict[str, Any] | str) -> bool:
    """Whether both are the same row, or both are malformed."""
    if isinstance(found, str) or isinstance(alone, str):
        return isinstance(found, str) and isinstance(alone, str)
    return same(found, {name: AsJson(json.loads(each)) if written(each) else each for name, each in alone.items()})


def written(value: Any) -> bool:
    """Whether a string is JSON of an array or an object, which Spark writes without spaces, but with other numbers."""
    return isinstance(value, str) and value[:1] in {"[", "{"}


def shown(found: dict[str, Any] | str, n: int | None = None) -> str:
    if isinstance(found, str):
        return f"✗ {escaped(found.removeprefix(f'c{n}: '))}"
    return row(found) if n is None else code(found[f"c{n}"])


def agrees(plain: Plain, schema: T.StructType, payload: str, found: dict[str, Any] | str) -> bool:
    """Check that a good row is what the second decoder returns. Returns whether both agree if it is malformed."""
    where = f"{schema.simpleString()} {payload}: {found}"
    expected = None
    try:
        expected = plain.decode(schema, payload)
    except Malformed:
        assert isinstance(found, str), f"{where}, but it is malformed"
        return True
    assert isinstance(found, str) or same(found, expected), f"{where}, not {expected}"
    return not isinstance(found, str)


@pytest.mark.slow
def test_the_page_shows_what_each_value_becomes(spark: SparkSession) -> None:
    """Each cell is what Spark decodes, and the second decoder agrees with it."""
    pages, reasons, others = [], list[str](), list[str]()
    for section in SECTIONS:
        cells = dict[tuple[str, str], str]()
        ddl = ", ".join(f"c{n} {kind}" for n, kind in enumerate(section.types))
        schema = T.StructType.fromDDL(ddl)
        assert isinstance(schema, T.StructType)
        places = [(n, value) for n in range(len(section.types)) for value in section.values]
        payloads = [f'{{"c{n}": {value}}}' for n, value in places]
        plain = Plain(ZONE, section.epoch_unit)
        changes = {"epoch_unit": section.epoch_unit}
        for (n, value), payload, found in zip(
            places, payloads, outcomes(spark, schema, payloads, **changes), strict=True
        ):
            agrees(plain, schema, payload, found)
            cells[value, section.types[n]] = cell(found, f"c{n}", reasons)
            alone = without_spark(ddl, payload, **changes)
            if not same_outcome(found, alone):
                others.append(f"| {code(value)} | {section.types[n]} | {shown(found, n)} | {shown(alone, n)} |")
        pages += [f"## {section.title}", table(section, cells)]
    assert sum(len(section.types) * len(section.values) for section in SECTIONS) >= 300
    pages += ["## Whole payloads", f"The schema is:\n\n```sql{WHOLE_SQL}```", whole(spark)]
    for payload, found in zip(PAYLOADS, outcomes(spark, WHOLE, [*PAYLOADS]), strict=True):
        alone = without_spark(WHOLE_ARROW, payload)
        if not same_outcome(found, alone):
            others.append(f"| {code(payload)} | the whole payload | {shown(found)} | {shown(alone)} |")
    head = ["| JSON | Type | With Spark | Without Spark |", "|---|---|---|---|"]
    pages += ["## Without Spark", WITHOUT_SPARK, "\n".join([*head, *others])]
    pages += [
        "## Reasons",
        "\n".join(["| Key | Reason |", "|---|---|", *(f"| {key(n)} | {each} |" for n, each in enumerate(reasons))]),
    ]
    intro, _, _ = PAGE.read_text().partition("\n## ")
    page = "\n\n".join([intro.rstrip(), *pages]) + "\n"
    if os.environ.get("WRITE"):
        PAGE.write_text(page)
    assert lines(PAGE.read_text()) == lines(page), "the table has changed: WRITE=1 writes it"


def lines(page: str) -> list[str]:
    """The lines in which all versions of Spark agree: 4.0 and 4.1 refuse half of a surrogate pair for other reasons."""
    return [each for each in page.splitlines() if ADMISSION_CONTROL or not each.startswith(r'| `"\ud800"`')]


def key(number: int) -> str:
    return chr(ord("a") + number)


def cell(found: dict[str, Any] | str, name: str, reasons: list[str]) -> str:
    """A value, or the key of the reason. The key stands for all values and types with the same reason."""
    if isinstance(found, dict):
        return code(found[name])
    words = "cannot be|is not|does not|exists|stands|has only|the name|a key|shares|null or"
    reason = re.sub(rf"^{name}\S*?: (?:.*? )??(?=(?:{words}) )", "", found)
    reason = re.sub(r"(?<=exactly as )[^;]+", "the type", reason)
    if reason not in reasons:
        reasons.append(reason)
    return f"✗ {key(reasons.index(reason))}"


def code(value: Any) -> str:
    value = bytes(value) if isinstance(value, bytearray) else value  # Spark 4.0 has no other type for BINARY
    return "null" if value is None else f"`{escaped(str(value))}`"


def escaped(value: str) -> str:
    return value.replace("|", "\\|")


def table(section: Section, cells: dict[tuple[str, str], str]) -> str:
    head = ["JSON", *section.types]
    lines = [[code(value), *(cells[value, kind] for kind in section.types)] for value in section.values]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def whole(spark: SparkSession) -> str:
    """Payloads in one schema, also with unknown_fields="malformed"."""
    ignored, refused = (
        outcomes(spark, WHOLE, [*PAYLOADS], unknown_fields=unknown) for unknown in ("ignore", "malformed")
    )
    lines = ['| Payload | Becomes | With `unknown_fields="malformed"` |', "|---|---|---|"]
    for payload, found, strict in zip(PAYLOADS, ignored, refused, strict=True):
        agrees(Plain(ZONE), WHOLE, payload, found)
        assert isinstance(found, dict) or isinstance(strict, str)
        shown = [row(found), "the same" if found == strict else row(strict)]
        lines.append(f"| {code(payload) if payload else 'empty'} | {' | '.join(shown)} |")
    return "\n".join(lines)


def row(found: dict[str, Any] | str) -> str:
    if isinstance(found, str):
        return f"✗ {escaped(found)}"
    return code({name: value for name, value in found.items() if value is not None})


@pytest.mark.timeout(0 if CASES else 300)
def test_no_good_row_differs_from_a_second_decoder(spark: SparkSession) -> None:
    cases, together = CASES or 400, min(1_000, CASES or 200)
    good = agreed = 0
    for plain, schema, payload, found in compared(spark, cases, together):
        agreed += agrees(plain, schema, payload, found)
        good += isinstance(found, dict)
    sys.stdout.write(f"{cases} payloads, SEED={SEED}: {good} good, {cases - agreed} malformed only in Spark\n")
    assert good > cases / 20


def compared(
    spark: SparkSession, cases: int, together: int
) -> Iterator[tuple[Plain, T.StructType, str, dict[str, Any] | str]]:
    chosen = random.Random(SEED)
    for _ in range(0, cases, together):
        schema = a_struct(chosen)
        unit = chosen.choice([None, "s", "ms", "us", "ns"])
        payloads = [a_payload(chosen, schema) for _ in range(together)]
        for payload, found in zip(payloads, outcomes(spark, schema, payloads, epoch_unit=unit), strict=True):
            yield Plain(ZONE, unit), schema, payload, found
