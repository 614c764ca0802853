"""Steps of attempts that append to a table, and die."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.hold.table import Appended, Origin
from jetstream_tables.append import append

COLUMNS = pa.schema(
    [
        ("_stream", pa.string()),
        ("_sequence", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("amount", pa.int64()),
    ]
)


class Killed(BaseException):
    """The process is gone: nothing catches this."""


def begin(holds: ExitStack, stream: Stream, claim: Claim, try_number: int = 1, **options: Any) -> BlockingHold:
    return holds.enter_context(BlockingHold.begin(stream.js.settings, claim, try_number=try_number, **options))


def rows(held: BlockingHold, only: Iterable[int] | None = None, each: int = 1) -> pa.Table:
    """The rows of a claim's messages, or of some of them; ``each`` rows for each message."""
    wanted = set(held.sequences if only is None else only)
    read = sorted((message.sequence, micros(message.time)) for message in held.messages() if message.sequence in wanted)
    return pa.table(
        {
            "sequence": pa.array([sequence for sequence, _ in read for _ in range(each)], pa.int64()),
            "timestamp": pa.array([time for _, time in read for _ in range(each)], pa.timestamp("us", "UTC")),
            "amount": pa.array([10 * sequence + at for sequence, _ in read for at in range(each)], pa.int64()),
        }
    )


def with_layout(held: BlockingHold) -> tuple[pa.Table, pa.Schema]:
    """The rows of a claim of ten messages with a column ``shop``, and the columns of a table, in another order."""
    given = rows(held).append_column("shop", pa.array(["north", "south"] * 5))
    identity = [("_stream", pa.string()), ("_sequence", pa.int64()), ("_timestamp", pa.timestamp("us", "UTC"))]
    return given, pa.schema([("shop", pa.string()), ("amount", pa.int64()), *identity])


def micros(time: str) -> int:
    return (int(time) if time.isdigit() else time_nanoseconds(time)) // 1_000


class Dying:
    """A table whose process dies, or stands still, around a commit."""

    def __init__(
        self, table: Any, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
    ) -> None:
        self.name = table.name
        self._target, self._before, self._after = table.target(), before, after

    def append(self, claim: Origin, rows: object, **how: Any) -> Appended:
        return append(self, claim, rows, **how)

    @contextmanager
    def look(self, stream: str, first: int, last: int) -> Iterator[Any]:
        with self._target.look(stream, first, last) as seen:
            yield _Seen(seen, self._before, self._after)


class _Seen:
    def __init__(self, seen: Any, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._seen, self._before, self._after = seen, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen, name)

    def commit(self, *of: Any) -> int | None:
        return self._around(self._seen.commit, *of)

    def commit_files(self, *of: Any) -> int | None:
        return self._around(self._seen.commit_files, *of)

    def _around(self, commit: Any, *of: Any) -> int | None:
        self._before()
        version: int | None = commit(*of)
        self._after()
        return version


def die() -> None:
    raise Killed


def once(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function at the first call only."""
    left = [function]

    def call() -> None:
        if left:
            left.pop()()

    return call


def counted(appended: Appended) -> tuple[int, int]:
    return appended.new.count, appended.already.count
