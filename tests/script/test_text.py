"""Strings from outside cannot mislead a reader of the page."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.script.modules import Modules


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("flights.LGA", "flights.LGA"),
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x00\x1b[31m\x7f\x85", r"\u0000\u001b[31m\u007f\u0085"),
        ("exe\u202egpj", r"exe\u202egpj"),
        ("\u2066a\u2069\u200e\u061c", r"\u2066a\u2069\u200e\u061c"),
        ("a\u200bb\ufeffc\u00add", r"a\u200bb\ufeffc\u00add"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\U000e0041tag", r"\u{e0041}tag"),
        ("\ud83d", r"\ud83d"),
        ("\u3164\u115f", r"\u3164\u115f"),
        ("Zürich, 東京, עברית 🎉", "Zürich, 東京, עברית 🎉"),
    ],
)
def test_hidden_characters_are_displayed_as_escapes(modules: Modules, text: str, shown: str) -> None:
    assert modules.call("text", "visible", text) == shown


@settings(max_examples=200)
@given(text=st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "L", "P"]), max_size=8))
def test_no_string_keeps_a_character_that_is_hidden(modules: Modules, text: str) -> None:
    shown = modules.call("text", "visible", text)
    assert not [each for each in shown if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    assert shown == "".join(modules.call("text", "visible", each) for each in text)


def test_several_lines_keep_their_line_feeds_and_nothing_else(modules: Modules) -> None:
    assert modules.call("text", "visibleLines", "a\n\u202eb\r\n") == "a\n\\u202eb\\r\n"


def test_a_long_string_is_cut_before_the_limit_and_not_within_a_character(modules: Modules) -> None:
    assert modules.call("text", "shortened", "x" * 10, 10) == "x" * 10
    assert modules.call("text", "shortened", "x" * 11, 10) == "x" * 9 + "…"
    assert modules.call("text", "shortened", "x" * 8 + "🎉🎉", 10) == "x" * 8 + "…"


def test_a_value_is_displayed_as_indented_json_and_a_string_as_it_is(modules: Modules) -> None:
    shown = modules.call("text", "visibleJson", {"rows": 50, "path": "\u202e"})
    assert shown == '{\n  "rows": 50,\n  "path": "\\u202e"\n}'
    assert modules.call("text", "visibleJson", "two\nlines") == "two\nlines"
    assert modules.call("text", "visibleJson", None) == "null"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [("claim x is not open", "Claim x is not open."), ("It is alive.", "It is alive.")],
)
def test_a_message_becomes_a_sentence(modules: Modules, message: str, sentence: str) -> None:
    assert modules.call("text", "sentence", message) == sentence
