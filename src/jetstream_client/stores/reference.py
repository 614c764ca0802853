# SPDX-License-Identifier: Apache-2.0
"""A message that refers to an object, because its payload is larger than the server's ``max_payload``. No I/O.

The headers say which object it is, and what its content must be. The payload is a sentence for people. No decoder takes
it for data: its first byte is an invalid tag in Protobuf and a negative length in Avro, and it is no JSON.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue, ObjectTooLarge, ReferenceInvalid
from jetstream_client.quantities import check_count
from jetstream_client.stores.key_value import check_bucket
from jetstream_client.wire.protocol import decode_headers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUCKET, NAME, DIGEST, SIZE = "Object-Bucket", "Object-Name", "Object-Digest", "Object-Size"
"""The headers of a reference. A message with an ``Object-Name`` is one."""
MAX_SIZE = 64 << 20
"""The largest object that is read by default, in bytes, which is as large as a server's ``max_payload`` can be."""
LONGEST_NAME = 1_000  # bytes, which are a third more in a subject

_ALGORITHM = "SHA-256="
_COUNT = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII)
NAMED = f"{NAME}:".encode()
"""Part of the header lines of each message that refers to an object."""


@dataclass(frozen=True)
class Objects:
    """What a reader may read.

    bucket:    the only object store whose objects are read.
    max_size:  the largest object that is read, in bytes. Default 64 MiB.

    Raises:
        InvalidValue: the name of the bucket or the size is invalid.
    """

    bucket: str
    max_size: int = MAX_SIZE

    def __post_init__(self) -> None:
        check_bucket(self.bucket, "objects")
        check_count("max_object_size", self.max_size)


@dataclass(frozen=True)
class Reference:
    """The object that a message refers to.

    bucket:  the object store.
    name:    the name of the object.
    digest:  the SHA-256 of its content, 32 bytes.
    size:    its size in bytes.
    """

    bucket: str
    name: str
    digest: bytes
    size: int

    @classmethod
    def of(cls, bucket: str, name: str, data: bytes) -> Reference:
        return cls(bucket, name, hashlib.sha256(data).digest(), len(data))

    @property
    def headers(self) -> dict[str, str]:
        return {BUCKET: self.bucket, NAME: self.name, DIGEST: shown_digest(self.digest), SIZE: str(self.size)}

    @property
    def payload(self) -> bytes:
        text = f"object {self.name} of bucket {self.bucket}, {self.size} bytes, which this message refers to"
        return text.encode()


def is_reference(header: bytes) -> bool:
    """Whether the header lines of a message say that it refers to an object, whether they are valid or not."""
    return b"\n" + NAMED in b"\n" + header


def reference(header: bytes, objects: Objects) -> Reference:
    """The reference in the header lines of a message that refers to an object. Nothing in it is believed unchecked.

    Raises:
        ReferenceInvalid: a header is missing, repeated or invalid, or names another bucket than ``objects``.
        ObjectTooLarge: the object is larger than ``objects`` allows.
    """
    found = decode_headers(b"\r\n" + header)
    name, bucket = _only(found, NAME), _only(found, BUCKET)
    digest, size = digest_of(_only(found, DIGEST)), _only(found, SIZE)
    if bucket != objects.bucket:
        raise ReferenceInvalid(f"it names the bucket {bucket[:60]!r}, and not {objects.bucket!r}, which is read here")
    if not name or len(name.encode()) > LONGEST_NAME:
        raise ReferenceInvalid(f"its {NAME} is empty or has more than {LONGEST_NAME} bytes")
    if digest is None:
        raise ReferenceInvalid(f"its {DIGEST} is not {_ALGORITHM} and 32 bytes in Base64")
    if not _COUNT.fullmatch(size):
        raise ReferenceInvalid(f"its {SIZE} is not a number of bytes")
    if int(size) > objects.max_size:
        raise ObjectTooLarge(name, int(size), objects.max_size)
    return Reference(bucket, name, digest, int(size))


def _only(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    if len(values) != 1:
        raise ReferenceInvalid(f"it has {len(values)} headers {name}, and needs one")
    return values[0]


def check_no_reference(headers: Mapping[str, object]) -> None:
    """Raises InvalidValue for headers of the caller that would make another message a reference."""
    for name in (BUCKET, NAME, DIGEST, SIZE):
        if name in headers:
            raise InvalidValue(f"headers[{name!r}]", "…", "this header is that of a reference; give it another name")


def shown_digest(digest: bytes) -> str:
    """A SHA-256 as object stores write it (ADR-20)."""
    return _ALGORITHM + base64.urlsafe_b64encode(digest).decode()


def digest_of(text: object) -> bytes | None:
    """The 32 bytes of a digest as object stores write it; None if it is none. Some clients leave the padding out."""
    if not isinstance(text, str) or not text.isascii() or text[: len(_ALGORITHM)].upper() != _ALGORITHM:
        return None
    try:
        digest = base64.b64decode(text[len(_ALGORITHM) :].rstrip("=") + "=", altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    return digest if len(digest) == hashlib.sha256().digest_size else None
