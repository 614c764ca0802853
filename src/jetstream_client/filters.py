# SPDX-License-Identifier: Apache-2.0
"""Many subject filters at once, as a tree of their tokens (so keeps nats-server its subscriptions,
``server/sublist.go``). A question costs what its subject has tokens, not what there are filters: a consumer may have
ten thousand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


def filters_of(config: Mapping[str, Any]) -> list[str]:
    """Return the filters of a consumer; ``>`` if it selects everything.

    config:  its configuration, as the server reports it.
    """
    return config.get("filter_subjects") or [config.get("filter_subject") or ">"]


def is_filtered(config: Mapping[str, Any]) -> bool:
    """Return whether a consumer has a filter, which may be ``>``. ``config`` as for :func:`filters_of`."""
    return bool(config.get("filter_subjects") or config.get("filter_subject"))


@dataclass(slots=True)
class _Node:
    """filter: the filter that ends here, if any. below: the next tokens."""

    filter: str | None = None
    below: dict[str, _Node] = field(default_factory=dict)


class Filters:
    """Valid subject filters (:func:`jetstream_client.names.check_filter`).

    >>> sold = Filters(["orders.*.new", "returns.>"])
    >>> sold.selecting("orders.7.new"), sold.selecting("orders.7.paid"), sold.overlapping("returns.7")
    ('orders.*.new', None, 'returns.>')
    """

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self._root = _Node()
        for each in filters:
            self.add(each)

    def add(self, filter_: str) -> None:
        node = self._root
        for token in filter_.split("."):
            node = node.below.setdefault(token, _Node())
        node.filter = filter_

    def selecting(self, subject: str) -> str | None:
        """Return a filter that a literal subject matches; None if it matches none."""
        return self._meeting(subject.split("."), literal=True)

    def overlapping(self, filter_: str) -> str | None:
        """Return a filter that has a subject in common with this one; None if there is none."""
        return self._meeting(filter_.split("."), literal=False)

    def _meeting(self, tokens: list[str], *, literal: bool) -> str | None:
        """Return a filter that has a subject in common with these tokens. ``literal``: ``*`` and ``>`` among them are
        no wildcards."""
        found = [(self._root, 0)]
        while found:
            node, at = found.pop()
            if at == len(tokens):
                if node.filter is not None:
                    return node.filter
                continue
            if rest := node.below.get(">"):
                return rest.filter
            wildcard = "" if literal else tokens[at]
            if wildcard == ">" and node.below:
                return _any(node)
            keys = node.below if wildcard == "*" else {"*", tokens[at]}
            found += [(node.below[key], at + 1) for key in keys if key in node.below]
        return None


def _any(node: _Node) -> str | None:
    """A filter below this node."""
    while node.below:
        node = next(iter(node.below.values()))
    return node.filter
