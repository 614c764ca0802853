"""A credential by its content, or by the path of a file that holds it.

What is meant can be seen for most: PEM and ``.creds`` have a line ``-----BEGIN``, a seed begins with SU. A password or
a token can be any text, so that only ``file:///…`` names a file; the others may be written so, too.

A file is read where and whenever a connection is made. One of a password, token, seed or ``.creds`` is read again at
each reconnect, as by nats.go's ``UserCredentials``: what was renewed in it is used from then on.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from airflow_nats_jetstream.client.errors import InvalidValue

_FILE = "file://"
_BEGIN = "-----BEGIN"
_PEM_BLOCK = re.compile(r"(-----BEGIN [A-Z ]+-----)\s*([A-Za-z0-9+/=\s]+?)\s*(-----END [A-Z ]+-----)")


def path_of(field: str, value: str) -> Path | None:
    """The file that the value of this field of the settings names; None for a content."""
    if value.startswith(_FILE):
        return Path(value.removeprefix(_FILE))
    if field.startswith("tls_"):
        return None if _BEGIN in value else Path(value)
    if field in ("nkey_seed", "credentials") and value.startswith(("/", "~")):
        return Path(value)
    return None


def read(field: str, value: str) -> str:
    """The content, from the file if the value names one, without the line ends after it.

    Raises:
        InvalidValue: the file cannot be read, or holds nothing. It does not show the path: a secret may stand in its
            place.
    """
    path = path_of(field, value)
    if path is None:
        return value
    try:
        content = path.expanduser().read_text().rstrip("\r\n")
    except (OSError, ValueError, RuntimeError) as wrong:  # the last: "~" of a user who has no home
        reason = (wrong.strerror if isinstance(wrong, OSError) else None) or "it is no text"
        remedy = (
            f"the file that it names cannot be read here ({reason}): it must lie at that path on every machine that "
            "connects, readable by the user that runs it, the api-server's for a test; or give the content itself"
        )
        raise InvalidValue(field, "…", remedy) from None
    if not content:
        raise InvalidValue(field, "…", "the file that it names is empty")
    return content


def read_pem(field: str, value: str, kind: str) -> str:
    """The same for PEM, with the line ends back that a form's field of one line has taken out of a pasted text.

    kind: what one of its blocks must be, ``CERTIFICATE`` or ``PRIVATE KEY``. Raises InvalidValue.
    """
    pem = read(field, value)
    if not re.search(rf"-----BEGIN (\w+ )*{kind}-----", pem):
        raise InvalidValue(field, "…", f"this holds no block -----BEGIN {kind}-----: give PEM, as text or as a path")
    return _PEM_BLOCK.sub(_reflowed, pem)


def _reflowed(block: re.Match[str]) -> str:
    return "\n".join([block[1], *textwrap.wrap("".join(block[2].split()), 64), block[3], ""])
