# SPDX-License-Identifier: Apache-2.0
"""Message ids: a stream stores a message once for each ``Nats-Msg-Id`` within its ``duplicate_window``."""

from __future__ import annotations

import hashlib
import re
from binascii import b2a_base64

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_TAG = 6  # characters of an id that name its scope, before "~"
_made_here = re.compile(rb"[\w-]{6}~[\w-]{22}(?:-\d+)?").fullmatch
_find_id = re.compile(rb"(?:^|\r\n)Nats-Msg-Id: *([^\r\n]*)").search


class MessageIds:
    """Makes ids from content and occurrence: the same messages in any order get the same set of ids.

    Equal messages get different ids, because an id depends on the number of earlier equal messages. Use a different
    ``scope`` for each run. An id begins with a tag of its scope, so that an id of another scope can be recognised. Each
    distinct message takes about 100 bytes of memory.
    """

    def __init__(self, scope: str) -> None:
        key = hashlib.blake2b(scope.encode(), digest_size=32).digest()
        self._keyed = hashlib.blake2b(digest_size=16, key=key)
        self._tag = b2a_base64(key).translate(_URL_SAFE)[:_TAG].decode()
        self._seen: dict[bytes, int] = {}

    def next(self, subject: str, data: bytes, header: bytes = b"") -> str:
        content = self._keyed.copy()
        content.update(b"%d %d %b%b%b" % (len(subject), len(header), subject.encode(), header, data))
        digest = content.digest()
        occurrence = self._seen[digest] = self._seen.get(digest, 0) + 1
        text = b2a_base64(digest, newline=False).translate(_URL_SAFE, b"=").decode()
        return f"{self._tag}~{text}" if occurrence == 1 else f"{self._tag}~{text}-{occurrence}"

    def foreign(self, identity: bytes) -> bool:
        """Whether an id was made by this class, but for another scope."""
        return identity[:_TAG] != self._tag.encode() and _made_here(identity) is not None


def message_id(header: bytes) -> bytes:
    """The ``Nats-Msg-Id`` in an encoded header block or its lines; empty if there is none."""
    match = _find_id(header)
    return match[1].rstrip() if match else b""
