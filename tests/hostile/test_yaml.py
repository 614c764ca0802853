"""Configurations as any YAML: refused or read, and never larger than they were written."""

import json
from typing import Any

from hypothesis import strategies as st

from airflow_nats_jetstream.operators.configuration_file import parse
from jetstream_client.errors import InvalidValue
from tests.hostile.attack import attack
from tests.hostile.values import Json

BILLION = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""The attack called "billion laughs"."""
Piece = st.sampled_from(
    [
        *(
            "a: ",
            "&a ",
            "*a",
            "<<: *a",
            "- ",
            "[",
            "]",
            "{",
            "}",
            ",",
            ": ",
            "? ",
            "\n",
            "\n  ",
            "\n    ",
            "---\n",
            "...\n",
        ),
        *(
            "!!python/object/apply:os.system [a]",
            "!!set ",
            "!!binary ",
            "!!timestamp ",
            "!t ",
            "%TAG ! !\n",
            "|\n",
            ">\n",
        ),
        *(
            "'",
            '"',
            "\\",
            "#",
            "\t",
            "\x00",
            "\ufeff",
            "\ud800",
            "1",
            "1e999",
            ".5",
            "9" * 5_000,
            "0x1",
            "yes",
            "~",
            "=",
            "`",
        ),
    ]
)
Text = st.lists(Piece | st.text(max_size=3), max_size=30).map("".join)


def size(value: Any) -> int:
    """Number of characters of the value with all references expanded."""
    if isinstance(value, dict):
        return 2 + sum(size(key) + size(each) for key, each in value.items())
    if isinstance(value, list | set | tuple):
        return 2 + sum(map(size, value))
    return len(value) if isinstance(value, str | bytes) else 1


def parsed(text: str) -> Any:
    try:
        return parse(text, "stream.yaml")[0]
    except InvalidValue:
        return None


@attack(Text | Text.map(lambda text: f"a: &a {text}\nb: *a") | st.just(f"a: &a [x]\n{BILLION}"), weight=2)
def test_any_yaml(text: str) -> None:
    value = parsed(text)
    assert size(value) <= 2 * len(text) + 4


@attack(st.sampled_from([1, 50, 2_000]), st.sampled_from(["[", "{a: ", "- ", "? ", "a:\n ", "&a [", "!t ["]))
def test_any_depth(deep: int, piece: str) -> None:
    parsed(piece * deep)


@attack(Json)
def test_any_json_is_yaml(value: Any) -> None:
    """Some values are refused by one parser and read by the other: very long numbers, and keys that occur twice."""
    text = json.dumps(value)
    found = parsed(text)
    assert found is None or size(found) <= 2 * len(text) + 4
