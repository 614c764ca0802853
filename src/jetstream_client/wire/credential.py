"""A credential by its content, or by the path of a file that holds it.

What is meant can be seen for most: PEM and ``.creds`` have a line ``-----BEGIN``, a seed begins with SU. A password or
a token can be any text, so that only ``file:///…`` names a file; the others may be written so, too.

A file is read where and whenever a connection is made. One of a password, token, seed or ``.creds`` is read again at
each reconnect, as by nats.go's ``UserCredentials``: what was renewed in it is used from then on.

The path may come from somebody who must not read every file of this machine, or name something that never ends. So only
regular files of at most 64 KiB are read, and where folders are given, only those below one of them.
"""

from __future__ import annotations

import os
import re
import stat
import textwrap
from pathlib import Path

from jetstream_client.errors import InvalidValue

LARGEST = 64 * 1024
"""Bytes of a file."""

_FILE = "file://"
_BEGIN = "-----BEGIN"
_LABEL = re.compile(r"-----BEGIN ([A-Z0-9 ]++)-----")
_PEM_BLOCK = re.compile(
    r"(-----BEGIN [A-Z0-9 ]++-----)([A-Za-z0-9+/=\s]++)(-----END [A-Z0-9 ]++-----)"
)  # no backtracking
_HOW = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY  # a pipe without a writer must not stop us


def path_of(field: str, value: str) -> Path | None:
    """The file that the value of this field of the settings names; None for a content."""
    if value.startswith(_FILE):
        return Path(value.removeprefix(_FILE))
    if field.startswith("tls_"):
        return None if _BEGIN in value else Path(value)
    if field in ("nkey_seed", "credentials") and value.startswith(("/", "~")):
        return Path(value)
    return None


def read(field: str, value: str, folders: str | None = None) -> str:
    """The content, from the file if the value names one, without the line ends after it.

    folders: as ``credential_folders`` of the settings.

    Raises:
        InvalidValue: the file may not or cannot be read, or holds nothing. It does not show the path: a secret may
            stand in its place.
    """
    path = path_of(field, value)
    if path is None:
        return value
    try:
        content = read_file(path, folders).rstrip("\r\n")
    except Outside:
        remedy = (
            "the file that it names lies outside of the folders from which credentials may be read: put it into one of "
            "them, or have whoever runs this process add its folder to credential_folders (in Airflow: [nats] "
            "credential_folders, AIRFLOW__NATS__CREDENTIAL_FOLDERS); or give the content itself"
        )
        raise InvalidValue(field, "…", remedy) from None
    except Unreadable as wrong:
        remedy = (
            f"the file that it names cannot be read here ({wrong}): it must lie at that path on every machine "
            "that connects, readable by the user that runs it, the api-server's for a test; or give the content itself"
        )
        raise InvalidValue(field, "…", remedy) from None
    if not content:
        raise InvalidValue(field, "…", "the file that it names is empty")
    return content


class Unreadable(Exception):
    """A file that cannot be read; the words say why and do not show its path."""


class Outside(Unreadable):
    """A file that is in none of the folders."""


def read_file(path: Path, folders: str | None = None) -> str:
    """The text of a regular file of at most 64 KiB, below one of the folders unless they are None.

    Raises:
        Outside: it is in none of them; whether it exists is not asked.
        Unreadable
    """
    try:
        descriptor = _open(path.expanduser(), folders)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable("it is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(LARGEST + 1)
        finally:
            os.close(descriptor)
    except OSError as wrong:
        raise Unreadable(wrong.strerror or type(wrong).__name__) from None
    except (ValueError, RuntimeError):  # a path with a NUL; "~" of a user who has no home
        raise Unreadable("it is not the path of a file") from None
    if len(content) > LARGEST:
        raise Unreadable("it is larger than 64 KiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8") from None


def _open(path: Path, folders: str | None) -> int:
    if folders is None:
        return os.open(path, _HOW)
    path = Path(os.path.realpath(path))
    for folder in filter(None, folders.split(os.pathsep)):
        within = Path(os.path.realpath(Path(folder).expanduser()))
        if path.is_relative_to(within) and path != within:
            return _open_below(within, path.relative_to(within).parts)
    raise Outside


def _open_below(folder: Path, names: tuple[str, ...]) -> int:
    """Step by step and through no link: the path was resolved, so a link on it now was put there since."""
    descriptor = os.open(folder, _HOW | os.O_DIRECTORY)
    for name in names:
        above = descriptor
        try:
            descriptor = os.open(name, _HOW | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def read_pem(field: str, value: str, kind: str, folders: str | None = None) -> str:
    """The same for PEM, with the line ends back that a form's field of one line has taken out of a pasted text.

    kind: what one of its blocks must be, ``CERTIFICATE`` or ``PRIVATE KEY``. Raises InvalidValue.
    """
    pem = read(field, value, folders)
    if not any(f" {label}".endswith(f" {kind}") for label in _LABEL.findall(pem)):
        raise InvalidValue(field, "…", f"this holds no block -----BEGIN {kind}-----: give PEM, as text or as a path")
    return _PEM_BLOCK.sub(_reflowed, pem)


def _reflowed(block: re.Match[str]) -> str:
    return "\n".join([block[1], *textwrap.wrap("".join(block[2].split()), 64), block[3], ""])
