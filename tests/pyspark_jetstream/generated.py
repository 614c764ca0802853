"""Random schemas, and JSON payloads that fit them more or less."""

import json
import random
import string

from pyspark.sql import types as T  # noqa: N812 - short for the many types

STRANGE = [
    "true", "0", "12", "4294967296", "9007199254740993", "12.0", "12.34", "12.345", "1e2", "1e-400", "1e400", "NaN",
    "8.41e21", "2e23", "9007199254740993e-15", "1.00000000000000000001e2", "12.3400000000000000001", "0.0000000001",
    '"x"', '"12"', '"12.34"', '"1,5"', '"1.2e3"', '"007"', '"+5"', '".5"', '"5."', '"NaN"', '"QQ=="', "null", "-0.0",
    '"2026-11-21"', '"20261121"', '"2026-02-29"', '"0000-01-01"', '"2026-11-21T03:00:00Z"', '"2026-11-21T03:00:00"',
    '"2026-11-21T03:00:00.1234567Z"', '"2026-03-29T02:30:00"', '"2026-10-25T02:30:00"', '"2026-10-25T02:30:00+01:00"',
    '"57873-01-01T00:00:00Z"', "1763694000000", "20261121", "[1, null]", '[1, "x"]', '{"a": 1}', '{"A": 1}',
    "0.10", '""',
]  # fmt: skip


def a_struct(chosen: random.Random, depth: int = 0) -> T.StructType:
    names = chosen.sample(
        ["id", "v", "Name", "at", "ä", "a b", "x.y", "`q`", "it's", "back\\slash"], chosen.randint(1, 4)
    )
    return T.StructType([T.StructField(name, a_type(chosen, depth), chosen.random() < 0.8) for name in names])


def a_type(chosen: random.Random, depth: int) -> T.DataType:
    if depth < 2 and chosen.random() < 0.3:
        inner = a_type(chosen, depth + 1)
        nullable = chosen.random() < 0.7
        return chosen.choice(
            [T.ArrayType(inner, nullable), T.MapType(T.StringType(), inner, nullable), a_struct(chosen, depth + 1)]
        )
    precision = chosen.randint(1, 38)
    scalars = [T.BooleanType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()]
    scalars += [T.DecimalType(precision, chosen.randint(0, precision)), T.StringType(), T.BinaryType()]
    return chosen.choice([*scalars, T.DateType(), T.TimestampType(), T.TimestampNTZType()])


def a_payload(chosen: random.Random, schema: T.StructType) -> str:
    """A JSON object of the schema, in which a value may be of any kind."""
    if chosen.random() < 0.01:
        return chosen.choice(["{}", "[]", "null", "", '{"other": 1}', '{"id": 1'])
    strange = chosen.choice([0, 0.02, 0.2])
    return an_object(chosen, schema, strange)


def an_object(chosen: random.Random, schema: T.StructType, strange: float) -> str:
    members = []
    for field in schema.fields:
        if chosen.random() < strange / 2 + 0.02:
            continue
        name = field.name.swapcase() if chosen.random() < strange / 4 else field.name
        members.append(
            f"{json.dumps(name, ensure_ascii=chosen.random() < 0.5)}: {a_value(chosen, field.dataType, strange)}"
        )
    if chosen.random() < 0.1:
        members.append('"other": ' + a_value(chosen, T.DoubleType(), 0.5))
    chosen.shuffle(members)
    return "{" + ", ".join(members) + "}"


def a_value(chosen: random.Random, kind: T.DataType, strange: float) -> str:  # noqa: C901, PLR0911 - one for each type
    if chosen.random() < strange:
        return chosen.choice([*STRANGE, a_number(chosen), json.dumps(a_number(chosen))])
    if isinstance(kind, T.StructType):
        return an_object(chosen, kind, strange)
    if isinstance(kind, T.ArrayType):
        return "[" + ", ".join(a_value(chosen, kind.elementType, strange) for _ in range(chosen.randint(0, 3))) + "]"
    if isinstance(kind, T.MapType):
        keys = chosen.sample(["k", "K", "id", "ä", ""], chosen.randint(0, 3))
        return "{" + ", ".join(f"{json.dumps(key)}: {a_value(chosen, kind.valueType, strange)}" for key in keys) + "}"
    if isinstance(kind, T.BooleanType):
        return chosen.choice(["true", "false"])
    if isinstance(kind, T.IntegralType):
        return str(
            chosen.choice([chosen.randint(-9, 9), chosen.randint(-40_000, 40_000), chosen.randint(-(2**63), 2**63)])
        )
    if isinstance(kind, T.DecimalType):
        digits = f"{chosen.randrange(10 ** chosen.randint(1, kind.precision)):0{kind.scale + 1}d}"
        text = f"{digits[: len(digits) - kind.scale]}.{digits[len(digits) - kind.scale :]}".rstrip(".")
        text = text.lstrip("0") if not text.startswith("0.") and text.strip("0.") else text
        return text if text[0] != "." and chosen.random() < 0.5 else json.dumps(text)
    if isinstance(kind, T.FractionalType):
        return a_number(chosen)
    if isinstance(kind, T.StringType):
        return json.dumps("".join(chosen.choices(string.printable + "ä€😀{[.", k=chosen.randint(0, 9))))
    if isinstance(kind, T.BinaryType):
        return chosen.choice(['"QQ=="', '""', '"QUJD"', '"AA"', '"QR=="', '"QQ==QQ=="'])
    return a_time(chosen, kind)


def a_number(chosen: random.Random) -> str:
    if chosen.random() < 0.5:
        return repr(
            chosen.choice([chosen.uniform(-9, 9), chosen.gauss(0, 1e20), float(chosen.randint(-99, 99)), 5e-324, 1e308])
        )
    whole = str(chosen.randrange(10 ** chosen.choice([1, 3, 8, 17, 25, 40])))
    fraction = (
        "." + "".join(chosen.choices(string.digits, k=chosen.choice([1, 2, 8, 25, 45])))
        if chosen.random() < 0.5
        else ""
    )
    exponent = chosen.choice(["e", "E+", "e-"]) + str(chosen.choice([0, 2, 20, 400])) if chosen.random() < 0.2 else ""
    return chosen.choice(["", "-"]) + whole + fraction + exponent


def a_time(chosen: random.Random, kind: T.DataType) -> str:
    year, month = chosen.choice([1, 1583, 1893, 1970, 2026, 9999]), chosen.choice([1, 3, 10, 12])
    # datetime.fromtimestamp, with which PySpark reads instants, cannot read those of the first day.
    days = [25, 29, 31] if (year, month) == (1, 1) else [1, 25, 29, 31]
    day = f"{year:04d}-{month:02d}-{chosen.choice(days):02d}"
    if isinstance(kind, T.DateType):
        return json.dumps(day)
    if isinstance(kind, T.TimestampType) and chosen.random() < 0.3:
        return str(
            chosen.choice([0, 1, -1, 1763694000, 1763694000.5, 1763694000123, 1763694000123456, 1763694000123456000])
        )
    clock = f"{chosen.choice([0, 1, 2, 3, 23]):02d}:{chosen.choice([0, 30, 59]):02d}"
    clock += chosen.choice(["", ":00", ":59", ":00.5", ":00.123456", ":00.1234560", ":00.1234567", ":60"])
    offset = (
        chosen.choice(["Z", "+01:00", "-05:30", "+0100", "+01"])
        if isinstance(kind, T.TimestampType) and chosen.random() < 0.6
        else ""
    )
    return json.dumps(f"{day}{chosen.choice('T ')}{clock}{offset}")
