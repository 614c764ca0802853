"""The key rule: what ordered_by may be, and the keys of messages."""

from typing import Any

import pytest

from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.rules.order_key import OrderKey, check_on_poison, check_same

SUBJECTS = [b"orders.7.new", b"orders.8.new", b"orders.7.paid", b"orders.\xff.new"]
HEADERS = [
    b"NATS/1.0\r\nOther: Customer: 1\r\nCustomer: 7\r\n\r\n",
    b"NATS/1.0\r\nCustomer:8\r\nCustomer: 9\r\n\r\n",
    b"NATS/1.0\r\ncustomer: 7\r\n\r\n",
    b"",
]


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        ("{2}", ["7", "8", "7", "\ufffd"]),
        ("{1}.{3}", ["orders.new", "orders.new", "orders.paid", "orders.new"]),
        ("{3}.{2}", ["new.7", "new.8", "paid.7", "new.\ufffd"]),
        ("subject", [each.decode(errors="replace") for each in SUBJECTS]),
        ("header:Customer", ["7", "8", "", ""]),
    ],
)
def test_the_keys_of_messages(rule: str, keys: list[str]) -> None:
    assert list(OrderKey.parse(rule).keys(SUBJECTS, HEADERS)) == keys


OTHERS = [None, 2, "", "2", "{0}", "{2", "{2}{3}", "{2}.", "{100}", "{{2}}", "subject ", "header:", "header:A B"]


@pytest.mark.parametrize("rule", [*OTHERS, "header:A:B", "header:A\r\nB", "header:é"])
def test_other_rules_are_refused(rule: Any) -> None:
    with pytest.raises(InvalidValue, match=r"ordered_by=.*counted from 1.*'header:<name>'"):
        OrderKey.parse(rule)


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (("stop", "{2}", 3), "give one of 'skip', 'stop_key'"),
        ((None, "{2}", 3), "give one of"),
        ((["skip"], "{2}", 3), "give one of"),
        (("stop_key", None, 3), "give ordered_by too"),
        (("stop_key", "{2}", None), "give max_failures too"),
    ],
)
def test_stopping_a_key_needs_a_key_and_a_reason(values: tuple[Any, ...], remedy: str) -> None:
    check_on_poison("skip", None, None)
    check_on_poison("stop_key", "{2}", 3)
    with pytest.raises(InvalidValue, match=f"on_poison=.*{remedy}"):
        check_on_poison(*values)


def test_a_subject_with_too_few_tokens_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"ordered_by='\{3\}': subject 'orders.7' has 2 tokens; .* a filter"):
        list(OrderKey.parse("{3}").keys([b"orders.7.new", b"orders.7"], [b"", b""]))


def test_a_filter_with_too_few_tokens_is_refused_before_a_message_arrives() -> None:
    rule, limit = OrderKey.parse("{1}.{3}"), {"max_ack_pending": 40}
    rule.check_consumer("c", {**limit, "filter_subjects": ["orders.*.*", "orders.>", "orders.*.new.*"]}, 10)
    rule.check_consumer("c", limit, 10)
    with pytest.raises(InvalidValue, match=r"the filter 'orders.\*' has 2 tokens"):
        rule.check_consumer("c", {**limit, "filter_subject": "orders.*"}, 10)
    OrderKey.parse("subject").check_consumer("c", {**limit, "filter_subject": "orders"}, 10)


def test_more_must_not_be_unacknowledged_than_a_batch_can_contain() -> None:
    rule = OrderKey.parse("subject")
    rule.check_consumer("c", {"max_ack_pending": 200_000}, 50_000)
    with pytest.raises(ConsumerUnsuitable, match=r"max_ack_pending=200000: .*set max_messages=50000 or"):
        rule.check_consumer("c", {"max_ack_pending": 200_000}, 49_999)
    with pytest.raises(ConsumerUnsuitable, match=r"max_ack_pending=-1: .* set max_ack_pending=200 or less"):
        rule.check_consumer("c", {"max_ack_pending": -1}, 50)


def test_a_stream_that_replaces_messages_is_refused() -> None:
    rule = OrderKey.parse("subject")
    rule.check_stream("S", "c", {"max_msgs_per_subject": -1})
    rule.check_stream("S", "c", {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True})
    with pytest.raises(ConsumerUnsuitable, match="max_msgs_per_subject=1, which removes messages that wait"):
        rule.check_stream("S", "c", {"max_msgs_per_subject": 1, "discard": "old"})


def test_a_take_with_another_rule_or_without_one_is_refused() -> None:
    check_same("c", None, "{2}")
    check_same("c", "{2}", "{2}")
    for asked in (None, "{3}"):
        with pytest.raises(ConsumerUnsuitable, match=r"ordered_by='\{2\}', and .*; give the same ordered_by"):
            check_same("c", "{2}", asked)
