"""Deliveries with any reply subject and headers, and any answers to a publish and of the API."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from jetstream_client.consume.message import Message
from jetstream_client.errors import ApiError, JetStreamError, ProtocolError, PublishFailed
from jetstream_client.info import ConsumerInfo, StreamInfo
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.publish.window import PublishWindow
from jetstream_client.read.message import RawMessage
from jetstream_client.wire.answers import decode_api_answer
from jetstream_client.wire.protocol import Reply, decode_headers, decode_status
from jetstream_client.words import OF_CLIENT
from tests.hostile.attack import attack
from tests.hostile.values import DEEP, Json, Texts, changed

Reply_ = st.lists(Texts, min_size=7, max_size=10).map(lambda words: ".".join(["$JS", "ACK", *words])) | st.sampled_from(
    ["$JS.ACK.S.c.1.2.3.4.5", "$JS.ACK.S.c.1.2.3.9223372036854775807.5", "$JS.ACK.S.c.1.2.3.99999999999999999999.5"]
)
Headers = st.dictionaries(
    st.sampled_from(["Nats-Msg-Size", "Status", "Description", "A"]),
    st.lists(Texts, min_size=1, max_size=3),
    max_size=3,
)
ACK = {"stream": "S", "seq": 7, "duplicate": True, "domain": "hub"}
ERROR = {"type": "x", "error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
COUNTERS = {"consumer_seq": 5, "stream_seq": 9}
CONSUMER = {
    "config": {"ack_wait": 10**9},
    "created": "2026-11-21T03:00:00.5Z",
    "ts": "2026-11-21T03:00:00.5Z",
    "delivered": COUNTERS,
    "ack_floor": COUNTERS,
    "num_pending": 1,
    "num_ack_pending": 2,
}
STATE = {"messages": 1, "bytes": 40, "first_seq": 7, "last_seq": 7, "last_ts": "2026-11-21T03:00:01Z"}
STREAM = {"config": {"name": "S"}, "state": STATE, "created": "2026-11-21T03:00:00.5Z"}
STORED = {"subject": "a", "seq": 1, "time": "2026-11-21T03:00:00Z", "hdrs": "TkFUUy8xLjANCg0K", "data": "eA=="}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@attack(Reply_, Headers, st.binary(max_size=9))
def test_a_delivery_has_a_size_and_a_time_or_is_refused(reply: str, headers: dict[str, list[str]], data: bytes) -> None:
    try:
        message = Message(None, Reply("s", reply, 0, "", headers, data))  # type: ignore[arg-type] # nothing is sent
    except ProtocolError:
        return
    assert 0 <= message.size < 10**10
    assert message.timestamp.tzinfo
    assert "Nats" not in repr(message)


@attack(st.sampled_from(["-5", "x", "1_0", "²", "", "9" * 5_000]), st.binary(max_size=3))
def test_a_publisher_cannot_say_how_large_its_message_is(said: str, data: bytes) -> None:
    reply = Reply("s", "$JS.ACK.S.c.1.2.3.4.5", 0, "", {"Nats-Msg-Size": [said]}, data)
    assert Message(None, reply).size == len(data)  # type: ignore[arg-type]
    # headers_only: the server's header is the last one.
    reply = reply._replace(headers={"Nats-Msg-Size": [said, "12"]}, data=b"")
    assert Message(None, reply).size == 12  # type: ignore[arg-type]


@attack(changed(ACK).map(encoded) | changed(ERROR).map(encoded) | st.binary(max_size=60) | st.just(DEEP), weight=2)
def test_any_answer_to_a_publish(data: bytes) -> None:
    try:
        ack = PubAck.parse(data)
    except JetStreamError:
        return
    assert type(ack.seq) is int
    assert 0 < ack.seq < 1 << 64
    assert all(isinstance(each, str) for each in (ack.stream, ack.domain))
    assert isinstance(ack.duplicate, bool)


Answers = st.tuples(
    st.integers(-1, 5), st.sampled_from([0, 503, 404]), changed(ACK).map(encoded) | changed(ERROR).map(encoded)
)


@attack(st.lists(Answers, max_size=12))
def test_answers_for_any_position_are_counted_once(answers: list[tuple[int, int, bytes]]) -> None:
    window = PublishWindow()
    for position in range(4):
        window.add(OutgoingMessage("s", b"x", position=position))
    for position, status, data in answers:
        window.on_reply(position, status, data)
        assert window.answered + len(window.unanswered) <= 4
    window.give_up(JetStreamError("gone"))
    try:
        assert window.result().count == 4
    except JetStreamError:
        assert window.answered < 4


@attack(changed(ERROR["error"]) | Json)
def test_any_error_object_is_an_api_error(error: Any) -> None:
    refusal = ApiError.from_response(error)
    assert type(refusal.code) is type(refusal.err_code) is int
    assert len(str(refusal)) < 12_000  # a number may be as long as Python can read


@attack(changed(ERROR).map(encoded) | Json.map(encoded) | st.binary(max_size=60) | st.just(DEEP))
def test_any_answer_of_the_api_is_an_object_or_a_typed_error(data: bytes) -> None:
    try:
        answer = decode_api_answer(data, 0, "$JS.API.INFO", "INFO", OF_CLIENT)
    except JetStreamError:
        return
    assert isinstance(answer, dict)


@attack(changed(CONSUMER))
def test_consumer_info_holds_what_decisions_rest_on(raw: Any) -> None:
    try:
        info = ConsumerInfo(raw)
    except ProtocolError:
        return
    assert min(info.counter, info.delivered, info.floor, info.pending, info.ack_pending) >= 0
    assert isinstance(info.config, dict)
    assert info.created[4] == info.now[4] == "-"


@attack(changed(STREAM))
def test_stream_info_is_whole_or_refused(raw: Any) -> None:
    try:
        info = StreamInfo(raw)
    except ProtocolError:
        return
    assert isinstance(info.config, dict)
    state = info.state
    assert min(state["messages"], state["bytes"], state["first_seq"], state["last_seq"]) >= 0
    assert {type(state[name]) for name in ("messages", "bytes", "first_seq", "last_seq", "last_ts")} == {int, str}
    assert info.created[4] == "-"


@attack(changed(STORED) | Json)
def test_a_stored_message_is_whole_or_refused(raw: Any) -> None:
    try:
        message = RawMessage.parse({"message": raw}).decoded()
    except ProtocolError:
        return
    assert isinstance(message.data, bytes)
    assert type(message.sequence) is int


@attack(st.binary(max_size=60).map(lambda data: b"NATS/1.0" + data))
def test_status_and_headers_of_one_block_agree(block: bytes) -> None:
    status, description = decode_status(block)
    assert status or not description
    assert "NATS/1.0" not in decode_headers(block)


@pytest.mark.parametrize("number", [b"0", b"00", b"07", b"-1", b"true", b"18446744073709551616", b"9" * 19 + b".0"])
def test_an_impossible_sequence_behind_a_possible_one_is_refused(number: bytes) -> None:
    window = PublishWindow()
    for position, said in enumerate([b"5", number]):
        window.add(OutgoingMessage("s", b"x", position=position))
        window.on_reply(position, 0, b'{"stream":"S", "seq":%b}' % said)
    with pytest.raises(PublishFailed) as failed:
        window.result()
    assert (failed.value.position, failed.value.stored) == (1, 1)
