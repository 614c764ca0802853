"""The resource: its settings, its secrets, and what it does without a claim."""

import dataclasses
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from jetstream_client import ConnectionSettings
from jetstream_client.errors import ApiError, BucketNotFound, InvalidValue, StreamNotFound
from tests.dagster_nats_jetstream.conftest import Line

SECRET = "planted-4f1c"
SECRETS = ("password", "token", "nkey_seed", "credentials", "tls_private_key")


@pytest.mark.parametrize("field", SECRETS)
def test_a_secret_is_in_no_repr(field: str) -> None:
    given: dict[str, Any] = {field: SECRET}
    resource = JetStreamResource(**given)
    assert SECRET not in repr(resource) + str(resource)


@pytest.mark.parametrize("wrong", [{"password": [SECRET]}, {"passwort": SECRET}])
def test_a_secret_is_in_no_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="JetStreamResource") as error:
        JetStreamResource(**wrong)
    assert SECRET not in str(error.value)


def test_invalid_settings_name_the_field() -> None:
    with pytest.raises(InvalidValue, match="servers"):
        _ = JetStreamResource(servers=f"nats://user:{SECRET}@localhost").settings


def test_every_setting_is_a_field_with_the_same_default() -> None:
    fields = {name: field.default for name, field in JetStreamResource.model_fields.items() if name != "console"}
    settings = {field.name: field.default for field in dataclasses.fields(ConnectionSettings) if field.compare}
    del settings["name"]  # which the server shows for the connection
    assert fields == settings


def test_a_variable_that_is_not_resolved_is_refused() -> None:
    """Otherwise its name would be the password."""
    with pytest.raises(InvalidValue, match=r"password='a dg.EnvVar': .*process_config_and_initialize_cm"):
        _ = JetStreamResource(password=dg.EnvVar("NATS_PASSWORD")).settings


def test_secrets_come_from_the_environment(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVERS", line.resource.servers)
    line.publish(3)
    resource = JetStreamResource(servers=dg.EnvVar("NATS_SERVERS"), shortest_ack_wait=0.5)

    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim) -> int:
        return claim.count

    assert dg.materialize([orders], resources={"jetstream": resource}).output_for_node("orders") == 3


def test_a_stream_and_a_consumer_are_brought_into_the_desired_state(line: Line) -> None:
    config = {"name": line.stream, "subjects": [f"{line.stream}.>"], "allow_direct": True}
    assert line.resource.ensure_stream(config) == ()
    assert line.resource.ensure_stream({**config, "max_msgs": 100}) == ("max_msgs",)
    consumer = {"durable_name": "work", "ack_policy": "explicit"}
    assert line.resource.ensure_consumer(line.stream, consumer) == ()
    assert line.resource.ensure_consumer(line.stream, {**consumer, "max_deliver": 7}) == ("max_deliver",)
    with pytest.raises(ApiError, match="storage"):
        line.resource.ensure_stream({**config, "storage": "memory"})


def test_messages_are_published_and_purged(line: Line) -> None:
    messages = [(f"{line.stream}.{number % 2}", b"x") for number in range(10)]
    since = line.resource.position(line.stream)
    stored = [
        (published.stored, published.duplicates)
        for published in (
            line.resource.publish(line.stream, messages, scope="run", since=since),
            line.resource.publish(line.stream, messages, scope="run", since=since),
        )
    ]
    assert stored == [(10, 0), (0, 10)]
    assert line.resource.purge(line.stream, subject=f"{line.stream}.1") == 5
    with pytest.raises(InvalidValue, match="everything"):
        line.resource.purge(line.stream)
    assert line.resource.purge(line.stream, everything=True) == 5
    with pytest.raises(StreamNotFound):
        line.resource.purge("NOT_THERE", keep=1)


def test_large_payloads_are_published_as_objects(line: Line) -> None:
    bucket, large = f"{line.stream}o", bytes(1 << 20)
    subjects = [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]
    line.resource.ensure_stream(
        {"name": f"OBJ_{bucket}", "subjects": subjects, "allow_rollup_hdrs": True, "discard": "new"}
    )
    messages = [(f"{line.stream}.0", b"small"), (f"{line.stream}.0", large)]
    published = line.resource.publish(line.stream, messages, scope="run", objects=bucket)
    assert (published.stored, published.last) == (2, 2)
    store = line.resource.run(lambda js: js.stream(line.stream).get_message(2))
    assert store.headers["Object-Size"] == [str(1 << 20)]
    with pytest.raises(BucketNotFound):
        line.resource.publish(line.stream, messages, scope="run", objects="nowhere")


def test_an_output_links_to_the_console(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)
    console = "https://nats.example.com/{stream}?claim={claim}"
    resource = JetStreamResource(servers=line.resource.servers, shortest_ack_wait=0.5, console=console)

    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim) -> str:
        return claim.id

    result = dg.materialize([orders], resources={"jetstream": resource}, instance=instance)
    (materialization,) = result.asset_materializations_for_node("orders")
    address = f"https://nats.example.com/{line.stream}?claim={result.output_for_node('orders')}"
    assert materialization.metadata["jetstream/console"].value == address


def test_an_invalid_console_is_refused_before_anything_is_taken(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)
    console = "https://nats.example.com/{account}"
    resource = JetStreamResource(servers=line.resource.servers, shortest_ack_wait=0.5, console=console)

    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim) -> None: ...

    with pytest.raises(dg.DagsterResourceFunctionError) as error:
        dg.materialize([orders], resources={"jetstream": resource}, instance=instance)
    assert "console=" in str(error.value.__cause__)
    assert line.run(lambda js: js.stream(line.stream).info()).state["consumer_count"] == 0
