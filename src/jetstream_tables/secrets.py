# SPDX-License-Identifier: Apache-2.0
"""Keep credentials out of messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote

_SECRET = re.compile(r"(?i)key|secret|token|passw|sas|credential|signature|auth")
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"\?\S*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ARROW = re.compile(r"\s*(?:\x1b\[[0-9;]*m)*↳(?:\x1b\[[0-9;]*m)*\s*")  # delta-rs, between an error and its cause
MASK = "***"


def public(address: str) -> str:
    """An address without the user, the password and the parameters in it."""
    return _QUERY.sub("", _USER.sub("", address))


def values_of(options: Mapping[str, str] | None) -> list[str]:
    """The values of options that are secret, by their names. An id with a secret, ``id:secret``, is one value, whose
    parts are sent separately."""
    found = [value for name, value in (options or {}).items() if _SECRET.search(name)]
    return [*found, *(part for value in found for part in value.split(":") if ":" in value)]


def in_address(address: str) -> list[str]:
    """The parts of an address that are secret: the password, and the values of parameters."""
    found = [user.group().rstrip("@").partition(":")[2] for user in _USER.finditer(address)]
    found += [part.partition("=")[2] for query in _QUERY.findall(address) for part in query[1:].split("&")]
    return [each for each in {*found, *map(unquote, found)} if each]


def in_properties(properties: Mapping[str, str]) -> list[str]:
    """The values of properties that are secret, by their names or as parts of addresses."""
    return [*values_of(properties), *(each for value in properties.values() for each in in_address(str(value)))]


def of_environment() -> list[str]:
    """The secrets that libraries take from the environment."""
    return values_of({name: value for name, value in os.environ.items() if name.startswith(("AWS_", "PYICEBERG_"))})


def forget_hidden(error: BaseException) -> None:
    """Remove the errors of libraries, with their credentials, that ``from None`` only hides from an error and from
    those that have led to it: some programs show them all the same."""
    each: BaseException | None = error
    while each is not None:
        if each.__suppress_context__:
            each.__context__ = None
        each = each.__cause__ or each.__context__


def masked(text: str, secrets: Iterable[str]) -> str:
    """A text on one line, without the colours of a terminal, in which the secrets and those of the environment are
    replaced."""
    text = " ".join(_COLOUR.sub("", _ARROW.sub(": ", text)).split())
    every = {form for each in (*secrets, *of_environment()) for form in (each, quote(each, safe=""), quote_plus(each))}
    for each in sorted(every, key=len, reverse=True):
        if each:
            text = text.replace(each, MASK)
    return text
