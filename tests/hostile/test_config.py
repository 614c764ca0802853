"""Configurations that a DAG author or a templated field could produce."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from jetstream_client.config import check_consumer_config, check_stream_config, describe, difference, merge
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_filter, check_stream_name, check_subject, subject_matches
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.rules.consumer import check_config
from tests.hostile.attack import attack
from tests.hostile.values import Json, Texts, changed

STREAM = {
    "name": "S",
    "subjects": ["S.>"],
    "max_age": 10**9,
    "metadata": {"a": "b"},
    "sources": [{"name": "T", "opt_start_time": "2026-11-21T03:00:00Z"}],
}
CONSUMER = {
    "durable_name": "c",
    "filter_subjects": ["a.*", "b.>"],
    "ack_policy": "explicit",
    "ack_wait": 60 * 10**9,
    "max_deliver": -1,
    "max_ack_pending": 1_000,
    "opt_start_time": "2026-11-21T03:00:00Z",
    "metadata": {"a": "b"},
}
Python = (
    st.timedeltas()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    | st.sampled_from([object(), b"x", {1}, {("a", 1): 2}, float("nan"), 1j, timedelta.max, {"a": {"b": b"c"}}])
)


def with_python(good: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda name, value: good | {name: value}, st.sampled_from([*good, "another", "pause_until", "x_time"]), Python
    )


def deep(levels: int = 5_000) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"metadata": value}
    return value


@attack(changed(STREAM) | with_python(STREAM) | Json | st.just(deep()), changed(STREAM), weight=2)
def test_any_stream_configuration(config: Any, current: Any) -> None:
    try:
        wanted = check_stream_config(config)
    except InvalidValue:
        return
    json.dumps(wanted, allow_nan=False).encode()
    assert all(isinstance(subject, str) for subject in wanted.get("subjects", []))
    if isinstance(current, dict):  # as a server could answer
        describe(difference(current, wanted))
        assert not difference(merge(current, wanted), wanted)


def test_a_limit_that_a_server_answers_is_no_number() -> None:
    wanted = check_stream_config(STREAM | {"max_age": 1_000_000_000})
    assert merge({"name": "S", "max_age": [None], "duplicate_window": 120 * 10**9}, wanted)["max_age"] == 1_000_000_000


@attack(changed(CONSUMER) | with_python(CONSUMER) | Json | st.just(deep()), weight=2)
def test_any_consumer_configuration(config: Any) -> None:
    try:
        wanted = check_consumer_config(config)
    except InvalidValue:
        return
    json.dumps(wanted, allow_nan=False).encode()
    describe(difference({}, wanted))


@attack(changed(CONSUMER) | with_python(CONSUMER) | Json)
def test_any_consumer_configuration_of_a_sensor(config: Any) -> None:
    try:
        check_config("c", config, max_messages=100)
    except (InvalidValue, ConsumerUnsuitable):
        return
    wanted = check_consumer_config(config or {})
    assert wanted.get("ack_policy", "explicit") == "explicit"
    assert wanted.get("max_deliver", -1) <= 0
    assert wanted.get("ack_wait", 60 * 10**9) >= 60 * 10**9


@attack(Texts | Json)
def test_a_name_can_be_sent(name: Any) -> None:
    for check in (check_stream_name, check_consumer_name):
        try:
            checked = check(name)
        except InvalidValue:
            continue
        assert 0 < len(checked.encode()) <= 255
        assert not set(checked) & set(" \t\r\n.*>/\\\x00")
        assert not any(letter.isspace() for letter in checked)


@attack(Texts | st.lists(Texts, max_size=4).map(".".join) | Json)
def test_a_subject_can_be_sent(subject: Any) -> None:
    for check in (check_subject, check_filter):
        try:
            checked = check(subject)
        except InvalidValue:
            continue
        assert not any(letter.isspace() or letter == "\x00" for letter in checked)
        assert "" not in checked.split(".")
        checked.encode()
        assert subject_matches(">", checked)
        assert subject_matches(checked, checked)
