# SPDX-License-Identifier: Apache-2.0
"""Check that Python and the installed packages meet the requirements of a distribution."""

from __future__ import annotations

import sys
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from jetstream_handoff.watch.findings import fine, not_checked, to_do

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jetstream_handoff.watch.findings import Finding


def check_versions(distribution: str, packages: Iterable[str]) -> Iterator[Finding]:
    """Compare the versions of Python and of these packages with the requirements of ``distribution``.

    distribution:  name of the installed distribution whose metadata is read.
    packages:      names of required packages; a package that only an extra requires may be missing.
    """
    try:
        own = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        yield not_checked(distribution, "it is not installed as a distribution, so its requirements are unknown")
        return
    yield fine(f"{distribution} {own.version}")
    python = "{}.{}.{}".format(*sys.version_info)
    yield _compared("Python", python, SpecifierSet(own.metadata["Requires-Python"]))
    for name in packages:
        versions, extra = _required(own, name)
        try:
            yield _compared(name, metadata.version(name), versions)
        except metadata.PackageNotFoundError:
            if extra:
                remedy = f"pip install '{distribution}[{extra}]' installs it"
                yield not_checked(name, f"it is not installed; where it is needed, {remedy}")
            else:
                yield to_do(name, f"it is not installed; run pip install '{name}{versions}'")


def _required(own: metadata.Distribution, name: str) -> tuple[SpecifierSet, str]:
    """The required versions of a package, and the extra that requires it; empty if the package is always required. Of
    several extras, it is the one with the fewest packages that says which versions."""
    extras = ("", *(own.metadata.get_all("Provides-Extra") or ()))
    required = [
        (requirement, extra)
        for requirement in map(Requirement, own.requires or ())
        for extra in extras
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    ]
    sizes = Counter(extra for _, extra in required)
    found = [(each.specifier, extra) for each, extra in required if _same(each.name, name)]
    return max(found, key=lambda each: (not each[1], bool(each[0]), -sizes[each[1]]), default=(SpecifierSet(), ""))


def _same(name: str, other: str) -> bool:
    return canonicalize_name(name) == canonicalize_name(other)


def _compared(name: str, version: str, required: SpecifierSet) -> Finding:
    what = f"{name} {version}"
    try:
        if required.contains(Version(version), prereleases=True):
            return fine(what)
    except InvalidVersion:
        return not_checked(what, "its version does not have Python's form (PEP 440), so it cannot be compared")
    remedy = "use another interpreter" if name == "Python" else f"run pip install '{name}{required}'"
    return to_do(what, f"{required} is required; {remedy}")
