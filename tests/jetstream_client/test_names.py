"""Names and subjects: invalid ones are refused before the server gets them, and filters match as on the server."""

import pytest

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_filter, check_stream_name, check_subject, subject_matches


@pytest.mark.parametrize("name", ["ORDERS", "a", "a-b_c", "größe", "x" * 255])
def test_names(name: str) -> None:
    assert check_stream_name(name) == check_consumer_name(name) == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "a>", "a/b", "a\\b", "a\n", "a\x00", "x" * 256, None, 7])
def test_names_that_are_refused(name: object) -> None:
    with pytest.raises(InvalidValue, match="stream="):
        check_stream_name(name)
    with pytest.raises(InvalidValue, match="consumer="):
        check_consumer_name(name)


def test_subjects_and_filters() -> None:
    assert check_subject("orders.new") == "orders.new"
    for pattern in ("orders.new", "orders.*", "*.new", "orders.>", ">"):
        assert check_filter(pattern) == pattern


@pytest.mark.parametrize(
    "subject",
    ["", ".", "a..b", "a.", ".a", "a b", "a\tb", "a\r\nPUB b 0", "a\x00", "a.*", "a.>", 3_841 * "a", 1_921 * "ä"],
)
def test_subjects_that_are_refused(subject: str) -> None:
    with pytest.raises(InvalidValue, match="subject="):
        check_subject(subject)


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", ">.a", "a b"])
def test_filters_that_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue, match="filter_subject="):
        check_filter(pattern)


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.c", "b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*x", "a.bx", False),
    ],
)
def test_what_a_filter_covers(pattern: str, subject: str, matches: bool) -> None:
    assert subject_matches(pattern, subject) is matches
