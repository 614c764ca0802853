"""The bulk connection against real servers."""

import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings
from jetstream_client.errors import ConnectionFailed, ConnectionLost, RequestTimeout, StreamNotFound
from jetstream_client.wire import blocking
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import encode_publish
from tests.jetstream_client.servers import Authority, Serve


def works(settings: ConnectionSettings) -> None:
    with Wire.open(settings) as wire:
        assert "memory" in wire.api("INFO")


def test_an_unreachable_server_has_a_time_limit_and_a_second_server_is_tried(nats_server: NatsServer) -> None:
    nowhere = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionFailed, match=nowhere):
        Wire.open(ConnectionSettings(servers=nowhere, connect_timeout=0.5))
    works(ConnectionSettings(servers=(nowhere, nats_server.url)))


Reach = Callable[[str], ConnectionSettings]


@pytest.fixture(params=["plain", "tls"])
def reach(request: pytest.FixtureRequest, serve: Serve, authority: Authority) -> Reach:
    """Start a server with a configuration, in plain text or with TLS. Returns the settings to reach it."""

    def start(config: str) -> ConnectionSettings:
        if request.param == "plain":
            return ConnectionSettings(servers=serve(config).url)
        port = serve(authority.config() + config).port
        return ConnectionSettings(servers=f"tls://localhost:{port}", tls_ca=str(authority.ca))

    return start


def test_more_than_the_sockets_hold_is_sent_and_received(reach: Reach) -> None:
    # 40 MB arrive while 40 MB are sent: two sides that only write would wait for each other.
    with Wire.open(reach("")) as wire:
        inbox = wire.new_inbox()
        wire.subscribe(inbox)
        commands = [encode_publish(inbox, "", b"x" * 100_000) for _ in range(400)]
        wire.send(*commands)
        received = 0
        while received < 400:
            received += len(wire.receive(5))


def test_a_ping_that_comes_in_the_middle_of_a_command_is_answered_after_it(reach: Reach) -> None:
    with Wire.open(reach('ping_interval: "2ms"\nping_max: 100000')) as wire:
        inbox = wire.new_inbox()
        wire.subscribe(inbox)
        for _ in range(5):
            wire.send(*[encode_publish(inbox, "", b"x" * 100_000) for _ in range(400)])
            received = 0
            while received < 400:
                received += len(wire.receive(5))


def test_a_request_keeps_what_arrives_behind_its_answer(nats_server: NatsServer) -> None:
    settings = ConnectionSettings(servers=nats_server.url)
    with Wire.open(settings) as wire, Wire.open(settings) as service, ThreadPoolExecutor() as threads:
        inbox = wire.new_inbox()
        wire.subscribe(inbox)
        wire.api("INFO")  # the server has the subscription
        service.subscribe("wire.service")
        service.api("INFO")

        def serve() -> None:
            for number in range(50):
                (request,) = service.receive(5)
                service.send(encode_publish(request.reply.decode(), "", b""), encode_publish(inbox, "", b"%d" % number))

        serving = threads.submit(serve)
        for _ in range(50):
            assert wire.request("wire.service").data == b""
        serving.result()
        kept: list[int] = []
        while len(kept) < 50:
            kept += [int(frame.data) for frame in wire.receive(2)]
    assert kept == list(range(50))


def test_a_server_that_hangs_is_a_lost_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "_PING_AFTER", 0.2)
    server = serve("")
    with Wire.open(ConnectionSettings(servers=server.url)) as connection:
        with pytest.raises(RequestTimeout):
            connection.receive(1)  # no message, but it answers PINGs
        time.sleep(0.5)
        with pytest.raises(RequestTimeout):
            connection.receive(0.05)  # the test's pause is not the server's silence
        server.freeze()
        try:
            with pytest.raises(ConnectionLost, match="did not answer a PING"):
                connection.receive(5)
        finally:
            server.thaw()


def test_answers_and_time_limits(nats_server: NatsServer) -> None:
    with Wire.open(ConnectionSettings(servers=nats_server.url)) as wire:
        with pytest.raises(StreamNotFound):
            wire.api("STREAM.INFO.NONE")
        assert wire.receive(0) == []
        start = time.monotonic()
        with pytest.raises(RequestTimeout):
            wire.receive(0.3)
        assert 0.2 < time.monotonic() - start < wire.settings.request_timeout


def test_a_killed_server_is_a_lost_connection(serve: Serve) -> None:
    server = serve("")
    with Wire.open(ConnectionSettings(servers=server.url)) as wire:
        server.kill()
        with pytest.raises(ConnectionLost):
            wire.receive(5)


def test_what_comes_in_plain_text_before_tls_is_not_believed(authority: Authority) -> None:
    """An attacker in the network may add to the server's INFO, while TLS runs with the real server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate, authority.private_key)
    inbox = "_INBOX.x"

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        connection.sendall(b'INFO {"tls_required":true}\r\nMSG %s 1 4\r\nevil\r\nPONG\r\n' % inbox.encode())
        with context.wrap_socket(connection, server_side=True) as encrypted:
            heard = b""
            while b"PING\r\n" not in heard:
                data = encrypted.recv(1024)
                assert data, "the client has closed the connection"
                heard += data
            encrypted.sendall(b"PONG\r\nMSG %s 1 4\r\ngood\r\n" % inbox.encode())
            encrypted.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:
        serving = threads.submit(serve, listening)
        url = f"tls://localhost:{listening.getsockname()[1]}"
        with Wire.open(ConnectionSettings(servers=url, tls_ca=str(authority.ca))) as wire:
            assert [frame.data for frame in wire.receive(2)] == [b"good"]
        serving.result()
