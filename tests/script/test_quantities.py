"""Numbers, sizes and durations as the page shows them."""

from typing import Any

import pytest

from tests.script.modules import Modules


@pytest.mark.parametrize(
    ("function", "arguments", "shown"),
    [
        ("count", [0], "0"),
        ("count", [999], "999"),
        ("count", [1_000], "1,000"),
        ("count", [1_234_567_890], "1,234,567,890"),
        ("count", [None], "?"),
        ("counted", [1, "message"], "1 message"),
        ("counted", [2_482, "message"], "2,482 messages"),
        ("counted", [0, "dead letter"], "0 dead letters"),
        ("signed", [52], "+52"),
        ("signed", [-1_003], "\N{MINUS SIGN}1,003"),
        ("signed", [0], "±0"),
        ("bytes", [44], "44 B"),
        ("bytes", [1_023], "1,023 B"),
        ("bytes", [1_024], "1.0 KiB"),
        ("bytes", [1_048_575], "1.0 MiB"),
        ("bytes", [36_272_800], "34.6 MiB"),
        ("bytes", [None], "?"),
        ("duration", [0], "0 s"),
        ("duration", [12.4], "12 s"),
        ("duration", [59.6], "1 min"),
        ("duration", [200], "3 min 20 s"),
        ("duration", [7_500], "2 h 5 min"),
        ("duration", [86_400 + 300], "1 d"),
        ("duration", [4 * 86_400 + 7_200], "4 d 2 h"),
        ("duration", [-3], "0 s"),
        ("duration", [None], "unknown"),
    ],
)
def test_a_quantity_is_displayed(modules: Modules, function: str, arguments: list[Any], shown: str) -> None:
    assert modules.call("quantities", function, *arguments) == shown
