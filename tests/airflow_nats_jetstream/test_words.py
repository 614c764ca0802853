"""Messages of the packages without an orchestrator name what its users have, by the settings of each connection."""

import argparse

import pytest

from airflow_nats_jetstream import command_line
from airflow_nats_jetstream.hooks import JetStreamHook
from dagster_nats_jetstream import JetStreamResource
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.errors import ConsumerNotFound, StreamNotFound
from jetstream_client.wire.blocking import Wire
from jetstream_handoff import portal
from jetstream_handoff.words import words_of

IN_AIRFLOW = "`python -m airflow_nats_jetstream claims`; DAG; its queue, its pool, and whether the DAG is paused"
IN_DAGSTER = "`python -m jetstream_handoff claims`; job; whether its run is queued or was ended"


def said(settings: ConnectionSettings) -> str:
    words = words_of(settings)
    return f"{words.command('claims')}; {words.pipeline}; {words.obstacles}"


def test_each_connection_has_the_words_of_its_orchestrator(hook: JetStreamHook, nats_server: NatsServer) -> None:
    resource = JetStreamResource(servers=nats_server.url)
    assert said(hook.settings) == IN_AIRFLOW.replace(" claims", f" claims --conn-id {hook.nats_conn_id}")
    assert said(resource.settings) == IN_DAGSTER
    options = {"server": nats_server.url, "conn_id": None, "credentials": None, "ledger": None, "domain": None}
    assert said(command_line._settings(argparse.Namespace(**options))) == IN_AIRFLOW
    assert said(ConnectionSettings(servers=nats_server.url)) == IN_DAGSTER.replace("job", "pipeline")
    assert hook.settings == ConnectionSettings.from_json(hook.settings.to_json())


def test_an_error_of_the_client_names_what_creates_it(hook: JetStreamHook, nats_server: NatsServer) -> None:
    resource, plain = JetStreamResource(servers=nats_server.url), ConnectionSettings(servers=nats_server.url)
    operators = "JetStreamCreateStreamOperator, or ", "JetStreamCreateConsumerOperator, or "
    of_resource = r"JetStreamResource\.ensure_stream\(\), or ", r"JetStreamResource\.ensure_consumer\(\), or "
    cases: list[tuple[ConnectionSettings, tuple[str, str]]] = [
        (hook.settings, operators),
        (resource.settings, of_resource),
        (plain, ("", "")),
    ]
    for settings, (stream, consumer) in cases:
        with pytest.raises(StreamNotFound, match=rf"create it \({stream}JetStream\.create_stream\(\)\)$"):
            portal.run(settings, lambda js: js.stream("NONE").info())
        with Wire.open(settings) as wire:
            with pytest.raises(StreamNotFound, match=rf"create it \({stream}JetStream\.create_stream\(\)\)$"):
                wire.api("STREAM.INFO.NONE")
            wire.api("STREAM.CREATE.WORDS", {"name": "WORDS", "subjects": ["WORDS"]})
            with pytest.raises(ConsumerNotFound, match=rf"create it \({consumer}Stream\.create_consumer\(\)\)$"):
                wire.api("CONSUMER.INFO.WORDS.none")
            wire.api("STREAM.DELETE.WORDS")
