"""Lists of the JetStream API, page by page: a page is asked for when the one before it has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.client.errors import ListingIncomplete
from airflow_nats_jetstream.client.protocol import ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from airflow_nats_jetstream.client.context import JetStream


class Pager:
    """The accounting of one list. No I/O.

    The server cuts a sorted list into pages of ``limit`` items and counts ``offset`` in the list, not in what it could
    answer: what is ``missing`` (its leader did not answer the asked server in time) or ``offline`` takes a place too.
    Source: nats-server ``jsClusteredStreamListRequest`` and ``ApiPaged`` (server/jetstream_api.go).
    """

    def __init__(self, request: str, body: Mapping[str, Any] | None = None) -> None:
        self.request = request
        self._body = dict(body or {})
        self._offset = 0
        self._left_out: list[str] = []
        self.done = False

    def body(self) -> dict[str, Any]:
        """Of the request for the next page."""
        return {**self._body, "offset": self._offset}

    def take(self, answer: Mapping[str, Any], given: int) -> None:
        """Account for a page with so many items. Raises ProtocolError for what is none, or leads nowhere."""
        total, limit = answer.get("total"), answer.get("limit")
        if type(total) is not int or type(limit) is not int or (limit < 1 and total > 0):
            raise ProtocolError(f"the answer to {self.request} is not a page")
        left_out = [str(name) for name in (*(answer.get("missing") or ()), *(answer.get("offline") or ()))]
        self._left_out += left_out
        self._offset += limit
        self.done = self._offset >= total
        if not (given or left_out or self.done):
            raise ProtocolError(f"the answer to {self.request} is an empty page before the end")

    def check(self) -> None:
        """After the last page. Raises ListingIncomplete when the server could not answer for all of the list."""
        if self._left_out:
            raise ListingIncomplete(self.request, sorted(set(self._left_out)))


async def items(js: JetStream, request: str, field: str, body: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
    """Everything under ``field`` of all pages.

    Raises:
        ListingIncomplete: after everything else.
        ApiError, RequestTimeout: see :meth:`JetStream.api`.
    """
    pager = Pager(request, body)
    while not pager.done:
        answer = await js.api(request, pager.body())
        page = answer.get(field) or ()
        pager.take(answer, len(page))
        for item in page:
            yield item
    pager.check()
