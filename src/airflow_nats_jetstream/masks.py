# SPDX-License-Identifier: Apache-2.0
"""The strings that Airflow must mask in logs: the secrets of a connection, in all forms in which they appear."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from airflow_nats_jetstream.get_provider_info import CONNECTION_FIELDS

if TYPE_CHECKING:
    from airflow.sdk import Connection

_FIELDS: Mapping[str, Any] = CONNECTION_FIELDS
_SECRETS = [name for name, field in _FIELDS.items() if field["schema"].get("format") == "password"]
"""The fields of the extra whose values must not appear in a log."""


def masks(connection: Connection) -> list[Any]:
    """Return the strings that Airflow must mask in logs: each secret of a connection, in all forms in which it appears.

    Airflow itself registers only the unchanged secret, so it would not mask a value that JSON or ``repr`` has escaped,
    nor a single line of a key. No more strings than necessary are returned, because Airflow compiles its whole pattern
    again for each string.

    connection:  the Airflow connection.
    """
    try:
        extra = json.loads(connection.extra or "{}")
    except (ValueError, RecursionError):
        extra = {}
    fields = extra if isinstance(extra, dict) else {}
    secrets = [connection.password, *(fields.get(name) for name in _SECRETS)]
    return sorted({form for secret in secrets if secret for part in _parts(str(secret)) for form in _forms(part)})


def _parts(secret: str) -> list[str]:
    """Return the lines of a secret, or its words if a web form has turned the line breaks of a key into spaces."""
    parts = []
    for line in re.split(r"[\r\n]+", secret):
        words = [word for word in line.split() if len(word) >= _LONG_WORD]
        parts += words if len(words) > 1 else [line]
    # The first and the last line of PEM are not secret, because they are always the same.
    return [part for part in parts if not (part.startswith("-----") and part.endswith("-----"))][:_MOST_PARTS]


def _forms(text: str) -> set[str]:
    """Return the text itself, and the text escaped for JSON, ``repr`` and URLs, including one escape inside another."""
    forms = {text}
    for _ in range(2):
        forms |= {escape(each) for each in forms for escape in _ESCAPES}
    if len(forms) == 1:
        return forms  # no escape changes the text; a key has up to fifty such lines
    return forms | {escape(each) for each in (text, _as_json(text)) for escape in (quote, _quote_all, quote_plus)}


def _quote_all(text: str) -> str:
    return quote(text, safe="")


def _as_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _as_unicode_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_repr(text: str) -> str:
    return repr(f'"{text}')[2:-1]  # the leading double quotation mark makes repr use single quotation marks


def _as_repr_in_quotes(text: str) -> str:
    return _as_repr(text).replace("\\'", "'")


_ESCAPES = (_as_json, _as_unicode_json, _as_repr, _as_repr_in_quotes)

_MOST_PARTS = 100
"""The largest number of parts that are masked in one secret; a private key has about fifty lines."""

_LONG_WORD = 20
"""The smallest number of characters in a word that counts as a line of a key: a line of PEM has 64 characters, and a
seed has 58."""
