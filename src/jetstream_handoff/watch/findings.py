# SPDX-License-Identifier: Apache-2.0
"""The findings of an examination: the result of each check, as a value that any command line can print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    what:   the checked object, with its name, for example ``stream ORDERS``.
    state:  ``to do`` if somebody has to act; ``advice`` if everything works, but more could be lost, or stop, than
            with other settings; ``not checked`` if the check could not be made.
    text:   details if the state is ``fine`` (possibly empty); the problem and the remedy if it is ``to do`` or
            ``advice``; the reason if it is ``not checked``.
    """

    what: str
    state: Literal["fine", "to do", "advice", "not checked"]
    text: str = ""


def fine(what: str, text: str = "") -> Finding:
    return Finding(what, "fine", text)


def to_do(what: str, text: str) -> Finding:
    return Finding(what, "to do", text)


def advice(what: str, text: str) -> Finding:
    return Finding(what, "advice", text)


def not_checked(what: str, text: str) -> Finding:
    return Finding(what, "not checked", text)
