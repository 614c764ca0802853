"""Tokens of subjects that cannot be part of a consumer's name: their messages are processed, or named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dagster_nats_jetstream import HeldClaim, claimed_asset, jetstream_sensor
from dagster_nats_jetstream.partitions import consumer_of, key_of, token_of
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_subject
from jetstream_client.wire.blocking import Wire
from tests.dagster_nats_jetstream.conftest import Line
from tests.dagster_nats_jetstream.test_sensor import Ticks, summed

COUNTRIES = dg.DynamicPartitionsDefinition(name="countries")
ODD = {"a/b": "a.2Fb", r"a\b": "a.5Cb", "a*b": "a.2Ab", "50%/x": "50.25.2Fx", "a%2Fb": "a%2Fb", "/etc/x": ".2Fetc.2Fx"}
"""Tokens, and the keys of their partitions."""


class Pipeline:
    """An asset of dynamic partitions with its sensor."""

    def __init__(self, line: Line, instance: dg.DagsterInstance) -> None:
        options: dict[str, Any] = {"partitions_def": COUNTRIES, "subject": f"{line.stream}.{{partition}}"}
        self._resources, self._instance = {"jetstream": line.resource}, instance
        self._asset = claimed_asset(**line.quick(), name="orders", **options)(self._work)
        self.tick = Ticks(line, instance, jetstream_sensor(**line.of(target=[self._asset]), **options), self._asset)
        self.counts: dict[str, int] = {}

    def _work(self, context: dg.AssetExecutionContext, claim: HeldClaim) -> int:
        self.counts[context.partition_key] = claim.count
        return claim.count

    def run(self, key: str) -> None:
        options: dict[str, Any] = {"resources": self._resources, "instance": self._instance}
        assert dg.materialize([self._asset], partition_key=key, **options).success


@pytest.fixture
def pipeline(line: Line, tmp_path: Path) -> Iterator[Pipeline]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield Pipeline(line, instance)


def publish_bytes(line: Line, subject: bytes) -> None:
    """Publish without the client's checks."""
    with Wire.open(line.settings) as wire:
        inbox = wire.new_inbox()
        wire.subscribe(inbox)
        wire.send(b"PUB %b.%b %b 1\r\nx\r\n" % (line.stream.encode(), subject, inbox.encode()))
        assert b'"seq"' in wire.receive(5)[0].data


def test_tokens_that_no_consumer_can_be_named_after_are_encoded(line: Line, pipeline: Pipeline) -> None:
    """They were never requested, and the tick said that 0 of 1 messages wait."""
    for number, token in enumerate(ODD, 1):
        line.publish(number, subject=f"{line.stream}.{token}")
    result = pipeline.tick()
    assert {request.partition_key for request in result.run_requests} == set(ODD.values())
    (added,) = result.dynamic_partitions_requests
    pipeline._instance.add_dynamic_partitions("countries", added.partition_keys)
    for key in ODD.values():
        pipeline.run(key)
    assert pipeline.counts == dict(zip(ODD.values(), range(1, len(ODD) + 1), strict=True))
    assert "a.2Fb: 0 of 1 messages wait" in pipeline.tick.skipped()


def test_what_cannot_be_a_partition_is_named_with_its_messages(
    line: Line, pipeline: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    line.publish(3, subject=f"{line.stream}.{'z' * 300}")
    publish_bytes(line, b"\xff")
    said = pipeline.tick.skipped()
    assert f"2 tokens of the subjects of stream {line.stream} cannot be partitions: " in said
    assert "zzz" in said
    assert "with 3 messages: a name must have at most 255 bytes" in said
    assert "with 1 message: the token is not UTF-8" in said
    line.publish(1, subject=f"{line.stream}.de")
    capfd.readouterr()
    assert [request.partition_key for request in pipeline.tick().run_requests] == ["de"]
    assert "with 3 messages: a name must have at most 255 bytes" in capfd.readouterr().err


@pytest.mark.parametrize("key", ["a/b", "a.b", "a.2fb", ".2A", "a.2Eb", "*", ">", "a b", "", "a\ufffd"])
def test_a_static_key_that_means_no_token_is_refused(line: Line, key: str) -> None:
    options: dict[str, Any] = {"partitions_def": dg.StaticPartitionsDefinition([key])}
    with pytest.raises(InvalidValue, match="partition="):
        claimed_asset(**line.quick(), name="orders", subject=f"{line.stream}.{{partition}}", **options)(summed)


Token = st.text(st.one_of(st.sampled_from("ab%/\\*>=-2FC"), st.characters(exclude_characters=".\ufffd")), min_size=1)


@given(Token, Token)
def test_a_key_means_one_token_and_a_token_has_one_consumer(one: str, other: str) -> None:
    for token in (one, other):
        try:
            check_subject(token)
        except InvalidValue:
            assume(False)
        assert token_of(key_of(token)) == token
    if one != other and max(map(len, map(str.encode, (one, other)))) < 60:
        assert consumer_of("c", key_of(one)) != consumer_of("c", key_of(other))
