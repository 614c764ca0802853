# SPDX-License-Identifier: Apache-2.0
"""A credential, given as its content or as the path of a file that contains it.

Most values show which of the two they are: PEM and ``.creds`` contain a line ``-----BEGIN``, and a seed begins with SU.
A password or a token can be any string, so only ``file:///…`` names their file. This form works for all fields.

A file is read when a connection is made, on the machine that connects. It is read again at each reconnect, as in
nats.go's ``UserCredentials``, so that renewed credentials and certificates are used.

The path may come from somebody who must not read every file of this machine, and it may name a file that never ends. So
only regular files of at most 64 KiB are read and, if folders are configured, only files below one of them.
"""

from __future__ import annotations

import os
import re
import stat
import textwrap
from pathlib import Path

from jetstream_client.errors import InvalidValue
from jetstream_client.words import OF_CLIENT, Words

LARGEST = 64 * 1024
"""The largest size of a credential's file in bytes."""

_FILE = "file://"
_BEGIN = "-----BEGIN"
_LABEL = re.compile(r"-----BEGIN ([A-Z0-9 ]++)-----")
_PEM_BLOCK = re.compile(
    r"(-----BEGIN [A-Z0-9 ]++-----)([A-Za-z0-9+/=\s]++)(-----END [A-Z0-9 ]++-----)"
)  # no backtracking
_SEED = re.compile(r"SU[A-Z2-7]{56}")
_JWT = re.compile(r"[\w.-]+", re.ASCII)
_HOW = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY  # a pipe without a writer must not stop us


def path_of(field: str, value: str) -> Path | None:
    """The file that the value of this settings field names; None if the value is the content itself."""
    if value.startswith(_FILE):
        return Path(value.removeprefix(_FILE))
    if field.startswith("tls_"):
        return None if _BEGIN in value else Path(value)
    if field in ("nkey_seed", "credentials") and value.startswith(("/", "~")):
        return Path(value)
    return None


def read(field: str, value: str, folders: str | None = None, words: Words = OF_CLIENT) -> str:
    """The credential itself: the value, or the content of the file that it names, without trailing line breaks.

    folders: as ``credential_folders`` of the settings.
    words: those of the settings.

    Raises:
        InvalidValue: reading the file is not permitted or not possible, or the file is empty. The message does not show
            the path, because the value could be a secret that was entered instead of a path.
    """
    path = path_of(field, value)
    if path is None:
        return value
    try:
        content = read_file(path, folders).rstrip("\r\n")
    except Outside:
        remedy = (
            "the file is outside the folders from which credentials may be read; move it into one of them, add its "
            f"folder to {words.credential_folders}, or set the content instead of a path"
        )
        raise InvalidValue(field, "…", remedy) from None
    except Unreadable as wrong:
        remedy = (
            f"the file cannot be read here ({wrong}); it must exist and be readable at that path on "
            f"{words.connecting}. Alternatively, set the content instead of a path"
        )
        raise InvalidValue(field, "…", remedy) from None
    if not content:
        raise InvalidValue(field, "…", "the file is empty; write the credential to it")
    return content


class Unreadable(Exception):
    """A file cannot be read. The message says why, without the path."""


class Outside(Unreadable):
    """A file is outside all of the folders."""


def read_file(path: Path, folders: str | None = None) -> str:
    """The content of a regular file of at most 64 KiB, below one of the folders unless they are None.

    Raises:
        Outside: the file is in none of the folders; whether it exists is not checked.
        Unreadable: the file cannot be read.
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
        raise Unreadable("the path is invalid") from None
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
    """Open each folder of a resolved path in turn. A link is not followed, because it was put there after the path was
    resolved."""
    descriptor = os.open(folder, _HOW | os.O_DIRECTORY)
    for name in names:
        above = descriptor
        try:
            descriptor = os.open(name, _HOW | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def read_pem(field: str, value: str, kind: str, folders: str | None = None, words: Words = OF_CLIENT) -> str:
    """Like :func:`read`, for PEM. Restores the line breaks that a form's single-line field removes from pasted PEM.

    kind: ``CERTIFICATE`` or ``PRIVATE KEY``; at least one block must be of this kind. Raises InvalidValue.
    """
    pem = read(field, value, folders, words)
    if not any(f" {label}".endswith(f" {kind}") for label in _LABEL.findall(pem)):
        remedy = (
            f"the text or file contains no block -----BEGIN {kind}-----; set PEM text with such a block, or the path "
            "of a PEM file that has one"
        )
        raise InvalidValue(field, "…", remedy)
    return _PEM_BLOCK.sub(_reflowed, pem)


def _reflowed(block: re.Match[str]) -> str:
    return "\n".join([block[1], *textwrap.wrap("".join(block[2].split()), 64), block[3], ""])


def check_seed(seed: str) -> str:
    """A user's NKey seed without surrounding white space. Raises InvalidValue, which does not show the seed."""
    if not _SEED.fullmatch(seed.strip()):
        remedy = "a user's seed has 58 characters and begins with SU; set it, or the path of a file that contains it"
        raise InvalidValue("nkey_seed", "…", remedy)
    return seed.strip()


def check_credentials(credentials: str) -> tuple[str, str]:
    """JWT and seed in the content of a ``.creds`` file. Raises InvalidValue, which does not show the content."""
    jwt, seed = _block("NATS USER JWT", credentials), _block("USER NKEY SEED", credentials)
    if not (_JWT.fullmatch(jwt) and _SEED.fullmatch(seed)):
        remedy = "set the content or the path of a .creds file, which has the blocks USER JWT and USER NKEY SEED"
        raise InvalidValue("credentials", "…", remedy)
    return jwt, seed


def _block(label: str, text: str) -> str:
    """The content between the lines BEGIN and END. Line breaks may be of any system, replaced by spaces, or missing."""
    inside, end, _ = text.partition(f"-----BEGIN {label}-----")[2].partition("-----END")
    return inside.rstrip("-").strip() if end else ""
