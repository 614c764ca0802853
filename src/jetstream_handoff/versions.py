# SPDX-License-Identifier: Apache-2.0
"""Whether Python and the installed packages are new enough for the requirements of a distribution."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING

from jetstream_handoff.findings import fine, not_checked, to_do

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jetstream_handoff.findings import Finding

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;.*extra == ['\"]([^'\"]+)['\"])?")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


def check_versions(distribution: str, packages: Iterable[str]) -> Iterator[Finding]:
    """Compare the versions of Python and of these packages with what ``distribution`` requires.

    distribution:  name of the installed distribution whose metadata is read.
    packages:      names of required packages; one that is required by an extra may be missing.
    """
    try:
        own = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        yield not_checked(distribution, "it is not installed as a distribution, so its requirements are unknown")
        return
    yield fine(f"{distribution} {own.version}")
    yield _compared("Python", platform.python_version(), str(own.metadata["Requires-Python"] or ""))
    required: dict[str, tuple[str, str | None]] = {}
    for line in own.requires or ():
        if found := _REQUIREMENT.match(line):
            required.setdefault(found[1].lower(), (found[2], found[3]))
    for name in packages:
        bounds, extra = required.get(name, ("", None))
        try:
            yield _compared(name, metadata.version(name), bounds)
        except metadata.PackageNotFoundError:
            if extra is None:
                yield to_do(name, f"it is not installed; run pip install '{name}{bounds}'")
            else:
                remedy = f"pip install '{distribution}[{extra}]' installs it"
                yield not_checked(name, f"it is not installed; where it is needed, {remedy}")


def _compared(name: str, version: str, bounds: str) -> Finding:
    what = f"{name} {version}"
    for operator, bound in _BOUND.findall(bounds):
        if (_numbers(version) >= _numbers(bound)) != (operator == ">="):
            remedy = "use another interpreter" if name == "Python" else f"run pip install '{name}{bounds}'"
            return to_do(what, f"{bounds} is required; {remedy}")
    return fine(what)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``4.3.0.dev1`` is (4, 3, 0)."""
    leading = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
