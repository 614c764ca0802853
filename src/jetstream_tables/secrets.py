# SPDX-License-Identifier: Apache-2.0
"""Keep credentials out of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

_SECRET = re.compile(r"(?i)key|secret|token|passw|sas|credential|signature|auth")
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"\?\S*")
MASK = "***"


def public(address: str) -> str:
    """An address without the user, the password and the parameters in it."""
    return _QUERY.sub("", _USER.sub("", address))


def values_of(options: Mapping[str, str] | None) -> list[str]:
    """The values of options that are secret, by their names."""
    return [value for name, value in (options or {}).items() if _SECRET.search(name)]


def in_address(address: str) -> list[str]:
    """The parts of an address that are secret: the password, and the values of parameters."""
    found = [user.group().rstrip("@").partition(":")[2] for user in _USER.finditer(address)]
    found += [part.partition("=")[2] for query in _QUERY.findall(address) for part in query[1:].split("&")]
    return [each for each in {*found, *map(unquote, found)} if each]


def masked(text: str, secrets: Iterable[str]) -> str:
    """A text in which the secrets are replaced."""
    for each in sorted(secrets, key=len, reverse=True):
        if each:
            text = text.replace(each, MASK)
    return text
