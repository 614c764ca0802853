"""Commands, header blocks and reply subjects, encoded and decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue, ProtocolError
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.protocol import AckSubject, decode_headers, encode_headers, encode_publish


@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=10),
        st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), max_size=10), min_size=1),
        max_size=4,
    )
)
def test_headers_with_several_values_survive(headers: dict[str, list[str]]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"": "x"}, {"a:b": "x"}, {"a": "x\r\nNats-Msg-Id: y"}, {"ä": "x"}])
def test_headers_that_would_break_the_block_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidValue):
        encode_headers(headers)


def test_commands() -> None:
    assert encode_publish("a", "", b"xy") == b"PUB a 2\r\nxy\r\n"
    header = encode_headers({"K": "v"})
    assert encode_publish("a", "r", b"xy", header) == b"HPUB a r 18 20\r\nNATS/1.0\r\nK: v\r\n\r\nxy\r\n".replace(
        b"18 20", b"%d %d" % (len(header), len(header) + 2)
    )


def test_reply_subjects() -> None:
    nine = AckSubject.parse("$JS.ACK.S.c.2.30.40.1700000000000000001.5")
    assert nine == AckSubject("S", "c", 2, 30, 40, 1700000000000000001, 5, "", "", 9)
    eleven = AckSubject.parse("$JS.ACK.hub.HASH.S.c.2.30.40.1700000000000000001.5")
    assert eleven == AckSubject("S", "c", 2, 30, 40, 1700000000000000001, 5, "hub", "HASH", 11)
    assert AckSubject.parse("$JS.ACK._.HASH.S.c.2.30.40.17.5.x").domain == ""


@given(st.text(max_size=60) | st.from_regex(r"\$JS\.ACK(\.[a-z0-9-]{0,5}){3,12}", fullmatch=True))
def test_any_other_subject_is_refused(subject: str) -> None:
    try:
        AckSubject.parse(subject)
    except ProtocolError:
        return
    assert subject.startswith("$JS.ACK.")


def test_times_keep_their_nanoseconds() -> None:
    assert time_nanoseconds("1970-01-01T00:00:01.000000001Z") == 1_000_000_001
    assert time_nanoseconds("1970-01-01T00:00:01.5-05:00") == (5 * 3600 + 1) * 10**9 + 5 * 10**8
