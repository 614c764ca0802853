"""Unexpected values: JSON of any shape, valid values with one change, numbers beyond every limit."""

import copy
from typing import Any

from hypothesis import strategies as st

DEEP = b"[" * 100_000
"""JSON that is nested deeper than Python's stack."""

Numbers = (
    st.integers(-3, 3)
    | st.sampled_from([2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63)])
    | st.floats()
    | st.booleans()
)
Texts = st.text(max_size=12) | st.sampled_from(
    ["", " ", ".", "*", ">", "a.b", "\x00", "\ud800", "\r\n", "x" * 300, "9" * 5_000, "²", "٣", "1_0", "NaN"]
)
Leaves = st.none() | Numbers | Texts
Json: st.SearchStrategy[Any] = st.recursive(
    Leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Texts, inner, max_size=3), max_leaves=6
)


def changed(good: Any) -> st.SearchStrategy[Any]:
    """The value with one part replaced, removed or added, at any depth."""

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        value = copy.deepcopy(good)
        parent: Any = value
        while isinstance(parent, dict | list) and parent:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            key = draw(st.sampled_from(keys))
            child = parent[key]
            if isinstance(child, dict | list) and child and draw(st.integers(0, 3)):
                parent = child
                continue
            what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
            if what == "replace":
                parent[key] = draw(Json)
            elif what == "remove":
                del parent[key]
            elif isinstance(parent, dict):
                parent[draw(Texts)] = draw(Json)
            else:
                parent.insert(key, draw(Json))
            return value
        return draw(Json)

    return build()
