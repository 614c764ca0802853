# SPDX-License-Identifier: Apache-2.0
"""The page's scripts, in the folder ``static``. Their address contains a hash of all of them, so that browsers may keep
them forever, and never combine files of two releases."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

BUNDLE = "jetstream.js"
"""The module that Airflow's page loads."""
FOREVER = "public, max-age=31536000, immutable"

_FOLDER = Path(__file__).parent / "static"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Files:
    """The files of the page.

    digest:    a hash of all files.
    contents:  for each name, the content and its media type.
    """

    digest: str
    contents: Mapping[str, tuple[bytes, str]] = field(repr=False)


@cache
def files() -> Files:
    """Return the files of the page. They are read once, so they do not change while the process runs."""
    found: dict[str, tuple[bytes, str]] = {}
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _KINDS:
            name, content = path.relative_to(_FOLDER).as_posix(), path.read_bytes()
            found[name] = content, _KINDS[path.suffix]
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return Files(digest.hexdigest()[:16], found)
