"""What a message says of an object is believed only after every part of it was checked."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue, ObjectTooLarge, ObjectUnresolved, ReferenceInvalid
from jetstream_client.stores.reference import Objects, Reference, digest_of, is_reference, reference, shown_digest
from jetstream_client.wire.protocol import encode_headers

LARGE = Reference.of("large", "a/b é", b"x" * 1_000)
HERE = Objects("large", 1_000)


def lines(headers: dict[str, str | list[str]]) -> bytes:
    """Headers as a stored message has them."""
    return encode_headers(headers).removeprefix(b"NATS/1.0\r\n").removesuffix(b"\r\n")


def test_a_reference_is_read_as_it_was_written() -> None:
    assert reference(lines({"Shop": "Lyon", **LARGE.headers}), HERE) == LARGE
    assert is_reference(lines(dict(LARGE.headers)))
    assert not is_reference(lines({"Shop": "Lyon", "X-Object-Name": "a"}))
    assert not is_reference(b"")
    assert digest_of(shown_digest(LARGE.digest).rstrip("=")) == LARGE.digest  # some clients leave the padding out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"Object-Bucket": "other"}, "names the bucket 'other', and not 'large'"),
        ({"Object-Bucket": []}, "0 headers Object-Bucket"),
        ({"Object-Name": ["a", "b"]}, "2 headers Object-Name"),
        ({"Object-Name": ""}, "empty"),
        ({"Object-Name": "x" * 1_001}, "more than 1000 bytes"),
        ({"Object-Digest": "SHA-256=AAAA"}, "32 bytes"),
        ({"Object-Digest": "MD5=AAAA"}, "SHA-256="),
        ({"Object-Size": "-1"}, "number of bytes"),
        ({"Object-Size": "1_0"}, "number of bytes"),
        ({"Object-Size": "9" * 30}, "number of bytes"),
    ],
)
def test_an_invalid_reference_is_an_error(changes: dict[str, str | list[str]], says: str) -> None:
    with pytest.raises(ReferenceInvalid, match=says):
        reference(lines({**LARGE.headers, **changes}), HERE)


def test_a_large_object_is_refused_by_its_size_alone() -> None:
    with pytest.raises(ObjectTooLarge, match=r"1001 bytes, and at most 1000 are read; raise max_object_size"):
        reference(lines({**LARGE.headers, "Object-Size": "1001"}), HERE)


@given(st.binary(max_size=200), st.sampled_from([b"", b"Object-Name: a\r\n", lines(dict(LARGE.headers))]))
def test_headers_of_any_bytes_are_a_reference_or_an_error(noise: bytes, more: bytes) -> None:
    for header in (noise + b"\r\n" + more, more + noise):
        try:
            found = reference(header, HERE)
        except ObjectUnresolved:
            continue
        assert found.bucket == "large"
        assert found.size <= 1_000


def test_the_payload_is_no_data_in_any_format() -> None:
    """Its first byte is the tag of a Protobuf field with the wire type 7, which does not exist, and in Avro the length
    -56."""
    first = LARGE.payload[0]
    assert first & 7 == 7
    assert first % 2 == 1
    assert first not in b' \t\r\n{["-0123456789tfn'  # no JSON begins with it


def test_a_reader_names_its_bucket() -> None:
    for wrong in ("", "a.b", "*", "a b"):
        with pytest.raises(InvalidValue, match="objects="):
            Objects(wrong)
    with pytest.raises(InvalidValue, match="max_object_size=0"):
        Objects("large", 0)
    assert hashlib.sha256(b"x" * 1_000).digest() == LARGE.digest
