# SPDX-License-Identifier: Apache-2.0
"""Lists of the JetStream API, page by page: a page is requested when the previous one has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetstream_client.errors import ListingIncomplete, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from jetstream_client.api import Api


GROWTH = 10_000
"""While a list is read, it may grow to twice its first length plus this many items."""


class Pager:
    """Keeps track of the pages of one list. No I/O.

    The server splits a sorted list into pages of ``limit`` items. ``offset`` counts all items of the list, including
    those that are ``missing`` in the answer (because their leader did not answer the server in time) or ``offline``.
    Source: nats-server ``jsClusteredStreamListRequest`` and ``ApiPaged`` (server/jetstream_api.go).
    """

    def __init__(self, request: str, body: Mapping[str, Any] | None = None) -> None:
        self.request = request
        self._body = dict(body or {})
        self._offset = 0
        self._longest = 0  # the largest number of items that the list may reach while it is read
        self._seen: set[str] = set()
        self._left_out: list[str] = []
        self.done = False

    def body(self) -> dict[str, Any]:
        """The body of the request for the next page."""
        return {**self._body, "offset": self._offset}

    def take(self, answer: Mapping[str, Any], items: object) -> None:
        """Record the answer with the next page, which has these ``items``.

        Raises ProtocolError for an invalid page, and for a list that might never end: an empty page, a page without
        new items, or a list that grows by more than :data:`GROWTH` allows.
        """
        total, limit, missing = answer.get("total"), answer.get("limit"), answer.get("missing") or []
        offline = answer.get("offline") or {}
        if (
            not (isinstance(items, list | dict) and isinstance(missing, list) and isinstance(offline, dict))
            or not (type(total) is int and type(limit) is int)
            or (limit < 1 and total > 0)
        ):
            raise ProtocolError(f"the answer to {self.request} is not a page of a list")
        self._left_out += map(str, [*missing, *offline])
        names = set(map(_name, items))
        if names and names <= self._seen:
            raise ProtocolError(f"the answer to {self.request} repeats a page")
        self._longest = self._longest or 2 * total + GROWTH
        if total > self._longest:
            raise ProtocolError(f"the list of {self.request} has grown to {total} items while it was read")
        self._seen |= names
        self._offset += limit
        self.done = self._offset >= total
        if not (items or missing or offline or self.done):
            raise ProtocolError(f"the answer to {self.request} is an empty page before the end of the list")

    def check(self) -> None:
        """Call after the last page. Raises ListingIncomplete if the server could not answer for every item."""
        if self._left_out:
            raise ListingIncomplete(self.request, sorted(set(self._left_out)))


def _name(item: object) -> str:
    """The name of an item: the item itself, or the name in the state of a consumer or stream."""
    if not isinstance(item, dict):
        return str(item)
    config = item.get("config")
    return str(item.get("name") or (config.get("name") if isinstance(config, dict) else None))


async def items(api: Api, request: str, field: str, body: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
    """Iterate over the items of all pages. Each answer contains the items of its page in ``field``.

    Raises:
        ListingIncomplete: raised after the last item.
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
