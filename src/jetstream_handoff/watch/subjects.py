# SPDX-License-Identifier: Apache-2.0
"""Several consumers of a stream, each of which selects other subjects: which of them selects a message, and which
messages none of them selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.filters import Filters
from jetstream_client.names import check_consumer_name, check_filter
from jetstream_client.quantities import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetstream_client.stream import Stream

MOST = 100_000
"""The largest number of subjects of a stream that are compared with the filters: the server's page (10 MB or so)."""
_NAMED = 5


def check_subjects(subjects: object) -> dict[str, str]:
    """Check a mapping of consumers to their filters, and return it.

    Raises:
        InvalidValue: it is empty, a name or filter is invalid, or a subject can match two of the filters: its messages
            would be processed twice.
    """
    if not isinstance(subjects, Mapping) or not subjects:
        raise InvalidValue("subjects", subjects, "give a mapping of the names of consumers to their subject filters")
    found: dict[str, str] = {}
    filters = Filters()
    for consumer, subject in subjects.items():
        check_consumer_name(consumer, "subjects")
        check_filter(subject, f"subjects[{consumer!r}]")
        if filter_ := filters.overlapping(subject):
            other = next(each for each, its in found.items() if its == filter_)
            remedy = (
                f"it overlaps with {filter_!r} of consumer {other!r}, so messages that match both would be "
                "processed twice; give filters that no subject matches twice"
            )
            raise InvalidValue(f"subjects[{consumer!r}]", subject, remedy)
        filters.add(subject)
        found[consumer] = subject
    return found


async def unmapped(stream: Stream, filters: Iterable[str]) -> str:
    """Return which subjects of stored messages match none of the filters, in a sentence; empty if there are none.

    Raises:
        JetStreamError: the server does not answer, or refuses the request.
    """
    count = int((await stream.info()).state.get("num_subjects", 0))
    if count > MOST:
        return (
            f"stream {stream.name} has {count:,} subjects, which are too many to find those that no consumer selects: "
            "compare the numbers of its messages and of those that the consumers select"
        )
    stored = (await stream.info(subjects_filter=">")).state.get("subjects") or {} if count else {}
    every = Filters(filters)
    left = {subject: held for subject, held in stored.items() if every.selecting(subject) is None}
    if not left:
        return ""
    some = ", ".join(sorted(left)[:_NAMED]) + (f" and {len(left) - _NAMED} more" if len(left) > _NAMED else "")
    messages = number(sum(left.values()), "message")
    return (
        f"{messages} of stream {stream.name} are selected by no consumer of this watcher, so no run gets them: {some}"
    )
