"""The bulk connection against real servers."""

import time

import pytest

from airflow_nats_jetstream.client import ConnectionSettings
from airflow_nats_jetstream.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    NotOnWire,
    RequestTimeout,
    StreamNotFound,
)
from airflow_nats_jetstream.client.protocol import encode_publish
from airflow_nats_jetstream.client.wire import Wire
from demo.nats_server import NatsServer
from demo.service import free_port
from tests.client.servers import PASSWORD, TOKEN, USER, Authority, Serve


def works(settings: ConnectionSettings) -> None:
    with Wire.open(settings) as wire:
        assert "memory" in wire.api("INFO")


def test_none_user_and_token(serve: Serve) -> None:
    works(ConnectionSettings(servers=serve("").url))
    works(ConnectionSettings(servers=serve(USER).url, user="airflow", password=PASSWORD))
    works(ConnectionSettings(servers=serve(TOKEN).url, token=PASSWORD))


def test_wrong_credentials_are_refused_at_once(serve: Serve) -> None:
    url = serve(USER).url
    start = time.monotonic()
    for wrong in ({}, {"user": "airflow", "password": "wrong"}, {"token": "wrong"}):
        with pytest.raises(AuthenticationFailed) as refused:
            works(ConnectionSettings(servers=url, **wrong))  # type: ignore[arg-type]
        assert "wrong" not in str(refused.value)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"tls": True}, "TLS"), ({"nkey_seed": "SUX"}, "NKey"), ({"credentials": "x"}, "credentials")],
)
def test_what_it_cannot_do_yet_is_refused_by_name(settings: dict[str, str], named: str) -> None:
    with pytest.raises(NotOnWire, match=named):
        Wire.open(ConnectionSettings(**settings))  # type: ignore[arg-type]


def test_a_server_that_requires_tls_is_told_nothing(serve: Serve, authority: Authority) -> None:
    settings = ConnectionSettings(servers=serve(authority.config() + USER).url, user="airflow", password=PASSWORD)
    with pytest.raises(ConnectionFailed, match="requires TLS"):
        Wire.open(settings)


def test_an_unreachable_server_has_a_time_limit_and_a_second_server_is_tried(nats_server: NatsServer) -> None:
    nowhere = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionFailed, match=nowhere):
        Wire.open(ConnectionSettings(servers=nowhere, connect_timeout=0.5))
    works(ConnectionSettings(servers=(nowhere, nats_server.url)))


def test_more_than_the_sockets_hold_is_sent_and_received(nats_server: NatsServer) -> None:
    # 40 MB come back while 40 MB go out: two sides that only wrote would wait for each other.
    with Wire.open(ConnectionSettings(servers=nats_server.url)) as wire:
        inbox = wire.new_inbox()
        wire.subscribe(inbox)
        commands = [encode_publish(inbox, "", b"x" * 100_000) for _ in range(400)]
        wire.send(*commands)
        received = 0
        while received < 400:
            received += len(wire.receive(5))


def test_answers_and_time_limits(nats_server: NatsServer) -> None:
    with Wire.open(ConnectionSettings(servers=nats_server.url)) as wire:
        with pytest.raises(StreamNotFound):
            wire.api("STREAM.INFO.NONE")
        assert wire.receive(0) == []
        start = time.monotonic()
        with pytest.raises(RequestTimeout):
            wire.receive(0.3)
        assert 0.2 < time.monotonic() - start < 1


def test_a_killed_server_is_a_lost_connection(serve: Serve) -> None:
    server = serve("")
    with Wire.open(ConnectionSettings(servers=server.url)) as wire:
        server.kill()
        with pytest.raises(ConnectionLost):
            wire.receive(5)
