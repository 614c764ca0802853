# SPDX-License-Identifier: Apache-2.0
"""Whether an S3 server refuses a conditional put (``If-None-Match``) of an object that exists.

Delta's compare-and-set is such a put of the next version. A server that ignores the condition accepts two versions with
the same number, and the rows of one of them are lost without an error.
"""

from __future__ import annotations

import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

from jetstream_tables.errors import TableUnsuitable
from jetstream_tables.s3 import other_server
from jetstream_tables.secrets import public

log = logging.getLogger(__name__)

_HONOURED = set[tuple[str, str]]()
"""The servers, each with a bucket, that this process has asked."""
_ROUNDS = 2


def check_conditional_puts(uri: str, options: dict[str, str] | None) -> None:
    """Check it once in a process for each server that is not Amazon's, with an empty table in a folder that readers of
    Delta leave out. The folder is deleted afterwards.

    The table gets two commits at once, because delta-rs looks for newer versions before it puts one: of two commits one
    after the other, it refuses the second one itself.

    Raises:
        TableUnsuitable: the server has accepted both.
    """
    endpoint = other_server(uri, options)
    if endpoint is None or (asked := (endpoint, urlsplit(uri).netloc)) in _HONOURED:
        return
    folder = f"_jetstream_{secrets.token_hex(8)}"
    honoured = _one_of_two_commits_fails(f"{uri.rstrip('/')}/{folder}", options)
    _delete(uri, folder, options)
    if not honoured:
        raise TableUnsuitable(
            f"the S3 server {public(endpoint)} ignores conditional puts (If-None-Match), so two commits at once would "
            "overwrite each other; update the server, or use a table of Iceberg, whose catalog decides"
        )
    _HONOURED.add(asked)


def _one_of_two_commits_fails(uri: str, options: dict[str, str] | None) -> bool:
    import deltalake
    import pyarrow as pa
    from deltalake.exceptions import CommitFailedError

    nothing = pa.table({"it": pa.array([], pa.bool_())})
    deltalake.write_deltalake(uri, nothing, storage_options=options)
    barrier = Barrier(2, timeout=60)

    def commits(number: int) -> bool:
        """Commit, with a handle that has not seen the other commit. Returns whether that has succeeded."""
        handle = deltalake.DeltaTable(uri, storage_options=options)
        properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("it", number)])
        barrier.wait()
        try:
            deltalake.write_deltalake(handle, nothing, mode="append", commit_properties=properties)
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        return all(sum(threads.map(commits, [each, each])) == 1 for each in range(_ROUNDS))


def _delete(uri: str, folder: str, options: dict[str, str] | None) -> None:
    """Delete the folder. What cannot be deleted does no harm. No time is spent on it, because delta-rs keeps other
    threads from running while it deletes, and one of them extends the hold."""
    from deltalake.fs import DeltaStorageHandler

    files = DeltaStorageHandler(uri, {**(options or {}), "max_retries": "0", "timeout": "5s"})
    try:
        for version in range(1 + _ROUNDS):
            files.delete_file(f"{folder}/_delta_log/{version:020}.json")
    except OSError as error:
        log.info("%s/%s is left over, because it could not be deleted: %s", public(uri), folder, type(error).__name__)
