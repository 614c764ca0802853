"""Lists of the JetStream API, page by page: a page is asked for when the one before it has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetstream_client.errors import ListingIncomplete, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from jetstream_client.api import Api


GROWTH = 10_000
"""By how much a short list may grow while it is read, beyond twice its length."""


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
        self._longest = 0  # that the list may become while it is read
        self._seen: set[str] = set()
        self._left_out: list[str] = []
        self.done = False

    def body(self) -> dict[str, Any]:
        """Of the request for the next page."""
        return {**self._body, "offset": self._offset}

    def take(self, answer: Mapping[str, Any], items: object) -> None:
        """Account for a page with these items.

        Raises ProtocolError for what is no page, and for a list that would never end: an empty page, one that brings
        nothing new, and a list that becomes twice as long while it is read.
        """
        total, limit, missing = answer.get("total"), answer.get("limit"), answer.get("missing") or []
        offline = answer.get("offline") or {}
        if (
            not (isinstance(items, list | dict) and isinstance(missing, list) and isinstance(offline, dict))
            or not (type(total) is int and type(limit) is int)
            or (limit < 1 and total > 0)
        ):
            raise ProtocolError(f"the answer to {self.request} is not a page")
        self._left_out += map(str, [*missing, *offline])
        names = set(map(_name, items))
        if names and names <= self._seen:
            raise ProtocolError(f"the answer to {self.request} is a page that was there before")
        self._longest = self._longest or 2 * total + GROWTH
        if total > self._longest:
            raise ProtocolError(f"the answers to {self.request} promise more each time: {total} by now")
        self._seen |= names
        self._offset += limit
        self.done = self._offset >= total
        if not (items or missing or offline or self.done):
            raise ProtocolError(f"the answer to {self.request} is an empty page before the end")

    def check(self) -> None:
        """After the last page. Raises ListingIncomplete when the server could not answer for all of the list."""
        if self._left_out:
            raise ListingIncomplete(self.request, sorted(set(self._left_out)))


def _name(item: object) -> str:
    """Of an item: the item itself, or the name in a consumer's or a stream's state."""
    if not isinstance(item, dict):
        return str(item)
    config = item.get("config")
    return str(item.get("name") or (config.get("name") if isinstance(config, dict) else None))


async def items(api: Api, request: str, field: str, body: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
    """Everything under ``field`` of all pages.

    Raises:
        ListingIncomplete: after everything else.
        ApiError, RequestTimeout: see :meth:`JetStream.api`.
    """
    pager = Pager(request, body)
    while not pager.done:
        answer = await api.api(request, pager.body())
        page = answer.get(field) or []
        pager.take(answer, page)
        for item in page:
            yield item
    pager.check()
