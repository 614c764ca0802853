"""The control connection against real servers: everything that is accepted, and everything that is refused."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import ConnectionFailed, ConnectionLost, InvalidValue, PermissionDenied, RequestTimeout
from jetstream_client.wire import control, link
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.control import Connection
from jetstream_client.wire.protocol import Reply
from jetstream_client.wire.session import Session
from tests.jetstream_client.servers import PASSWORD, USER, Authority, Serve, frozen
from tests.jetstream_client.steps import Traffic
from tests.jetstream_client.until import until


@asynccontextmanager
async def pretend(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server that is not a nats-server. It ends when its clients have disconnected."""
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(cast("asyncio.Task[None]", asyncio.current_task()))
        await serve(reader, writer)
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.wait_for(asyncio.gather(*running), 5)


async def works(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        assert (await js.account_info()).memory >= 0


async def test_an_unreachable_server_has_a_time_limit_and_says_where() -> None:
    address = f"nats://127.0.0.1:{free_port()}"
    start = time.monotonic()
    with pytest.raises(ConnectionFailed, match=address):
        await works(ConnectionSettings(servers=address, connect_timeout=1))
    assert time.monotonic() - start < ConnectionSettings.connect_timeout


async def test_a_server_that_says_nothing_has_a_time_limit() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with pretend(silent) as port:
        with pytest.raises(ConnectionFailed):
            await works(ConnectionSettings(servers=f"nats://127.0.0.1:{port}", connect_timeout=1))


@pytest.mark.parametrize("secret", [{}, {"user": "airflow", "password": PASSWORD}, {"token": PASSWORD}])
async def test_tls_asked_for_and_not_given_sends_no_secret(secret: dict[str, str]) -> None:
    heard = bytearray()

    async def plain_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","headers":true,"auth_required":true}\r\n')
        while data := await reader.read(1024):
            heard.extend(data)
        writer.close()

    async with pretend(plain_server) as port:
        settings = ConnectionSettings(servers=f"tls://127.0.0.1:{port}", connect_timeout=2, **secret)  # type: ignore[arg-type]
        with pytest.raises(ConnectionFailed):
            await works(settings)
    assert PASSWORD.encode() not in heard


@pytest.mark.parametrize("driver", ["connection", "wire"])
async def test_a_server_that_stops_in_the_middle_of_the_handshake_has_a_time_limit(driver: str) -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","headers":true,"tls_required":true}\r\n')
        await reader.read()
        writer.close()

    async with pretend(stalls) as port:
        settings = ConnectionSettings(servers=f"tls://127.0.0.1:{port}", connect_timeout=1)
        start = time.monotonic()
        with pytest.raises(ConnectionFailed, match="within 1 s"):
            await (works(settings) if driver == "connection" else asyncio.to_thread(Wire.open, settings))
        assert time.monotonic() - start < ConnectionSettings.connect_timeout


async def test_nothing_is_buffered_while_disconnected(serve: Serve) -> None:
    server = serve("")
    async with Connection.open(ConnectionSettings(servers=server.url)) as connection:
        server.kill()
        await asyncio.sleep(0.3)
        with pytest.raises(ConnectionLost):
            await connection.publish("x", b"late")
        server.start()
        for _ in range(50):
            await asyncio.sleep(0.1)
            if connection.is_connected:
                break
        assert 0 < await connection.round_trip() < connection.settings.request_timeout


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"servers": "nats://user:secret@host:4222"}, "servers"),
        ({"servers": ""}, "servers"),
        ({"servers": "http://host"}, "servers"),
        ({"servers": "nats://host:99999"}, "servers"),
        ({"user": "a"}, "password"),
        ({"user": "a", "password": "b", "token": "c"}, "authentication"),
        ({"tls_certificate": "x"}, "tls_private_key"),
        ({"domain": "a", "api_prefix": "b"}, "domain"),
        ({"domain": "a b"}, "domain"),
        ({"ledger": "a.b"}, "ledger"),
        ({"connect_timeout": 0}, "connect_timeout"),
    ],
)
def test_settings_that_contradict_themselves(changes: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        ConnectionSettings(**changes)  # type: ignore[arg-type]
    assert refused.value.field == named
    assert "secret" not in str(refused.value)


async def test_a_socket_that_was_reset_does_not_hide_what_ended_the_block(settings: ConnectionSettings) -> None:
    async def ended() -> None:
        async with Connection.open(settings) as connection:
            await connection.publish("a", b"on its way")
            connection._session.link.abort()  # as by a reset from the other side
            raise ConnectionLost("what ended it")

    with pytest.raises(ConnectionLost, match="what ended it"):
        await ended()


async def test_who_is_cancelled_while_it_waits_for_a_round_trip_leaves_nothing_behind(
    mortal: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ConnectionSettings(servers=mortal.url, request_timeout=1)
    async with Connection.open(settings) as connection:
        inboxes = [await connection.open_inbox(lambda _: None) for _ in range(2)]
        with frozen(mortal):
            flushing = [asyncio.create_task(each) for each in (connection.flush(), inboxes[0].drain())]
            late = [asyncio.create_task(each) for each in (connection.flush(), inboxes[1].drain())]
            await asyncio.sleep(0.1)
            for each in flushing:
                each.cancel()
            results = await asyncio.gather(*flushing, *late, return_exceptions=True)
            assert [type(each) for each in results] == [asyncio.CancelledError] * 2 + [RequestTimeout] * 2
        del flushing, late, results
        gc.collect()
        for _ in range(5):  # their answers arrive now
            await until(lambda: answers(connection))
        assert connection.reconnects == 0
    assert not caplog.records


async def test_a_subscription_that_was_refused_does_not_forbid_anything_else(serve: Serve) -> None:
    denied = 'subscribe: { deny: ["secret.>"] }'
    server = serve(f'authorization {{ users: [ {{ user: "a", password: "b", permissions: {{ {denied} }} }} ] }}')
    async with connect(ConnectionSettings(servers=server.url, user="a", password="b", request_timeout=1)) as js:
        for _ in range(2):
            with pytest.raises(PermissionDenied, match="secret"):
                async with js.connection.listen("secret.>", lambda _: None):
                    pytest.fail("it was permitted")
        js.connection.check_permitted("anything")


async def test_a_round_trip_follows_what_was_published_before() -> None:
    heard: list[bytes] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":1024}\r\n')
        while line := await reader.readline():
            heard.append(line.strip())
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    async with (
        pretend(server) as port,
        Connection.open(ConnectionSettings(servers=f"nats://127.0.0.1:{port}")) as open_,
    ):
        heard.clear()
        for _ in range(3):
            await open_.publish("a")
        await open_.flush()
        assert heard == [b"PUB a 0", b""] * 3 + [b"PING"]


async def test_who_is_cancelled_when_it_has_just_connected_leaves_no_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ConnectionSettings(servers=serve("").url)

    class Cancelling(Session):
        async def open(self) -> None:
            await super().open()
            opening.cancel()

    async def use() -> None:
        async with Connection.open(settings):
            await asyncio.sleep(0)
            pytest.fail("it was cancelled")

    monkeypatch.setattr(control, "Session", Cancelling)
    before = asyncio.all_tasks()
    opening = asyncio.create_task(use())
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert asyncio.all_tasks() == before


async def test_what_was_not_sent_is_not_sent_on_the_next_connection() -> None:
    """Its callers have got an error, and the answer to a PING would be mistaken for that of a later one."""
    heard: list[list[bytes]] = []
    full = asyncio.Event()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append([])
        said = heard[-1]
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":65536}\r\n')
        while line := await reader.readline():
            said.append(line[:5].strip())
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
                if len(heard) == 1:
                    await full.wait()  # it reads nothing
                    break
        writer.close()

    async with (
        pretend(server) as port,
        Connection.open(ConnectionSettings(servers=f"nats://127.0.0.1:{port}", request_timeout=0.5)) as open_,
    ):
        while not open_._session.link.unsent:
            for _ in range(100):
                await open_.publish("a", b"x" * 60_000)
            await asyncio.sleep(0)
        with pytest.raises(RequestTimeout):
            await open_.flush()
        full.set()
        await until(lambda: open_.reconnects == 1)
        await open_.flush()
        assert heard[1] == [b"CONNE", b"PING", b"PING"]  # one for connecting, and the last one


async def answers(connection: Connection) -> bool:
    try:
        await connection.flush()
    except RequestTimeout:
        return False
    return True


async def test_who_is_cancelled_as_the_answer_arrives_ends(settings: ConnectionSettings) -> None:
    async with Connection.open(settings) as connection:
        await connection.request("$JS.API.INFO")  # the first one subscribes to the inbox
        asking = asyncio.create_task(connection.request("$JS.API.INFO"))
        await asyncio.sleep(0)  # it has sent its request, and waits
        (answer,) = connection._waiting.values()
        answer.set_result(Reply("a", "", 0, "", {}, b""))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_servers_that_info_names_are_not_followed_with_tls(serve: Serve, authority: Authority) -> None:
    """An attacker in the network can change INFO, which precedes TLS, and so choose the name to check."""
    server = serve(authority.config() + USER)
    attempts: list[str] = []
    way: list[asyncio.StreamWriter] = []

    async def followed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append("followed")
        writer.close()

    async def on_the_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append("named")
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        way.extend((writer, back))
        said = json.loads((await there.readline()).removeprefix(b"INFO "))
        writer.write(b"INFO " + json.dumps({**said, "connect_urls": [f"127.0.0.1:{elsewhere}"] * 3}).encode() + b"\r\n")
        with suppress(OSError):
            await asyncio.gather(pipe(reader, back), pipe(there, writer))

    async with pretend(followed) as elsewhere, pretend(on_the_way) as port:
        settings = ConnectionSettings(
            servers=f"tls://localhost:{port}", user="airflow", password=PASSWORD, tls_ca=str(authority.ca)
        )
        async with connect(settings) as js:
            for times in (2, 3):
                for end in way:
                    end.transport.abort()
                way.clear()
                await until(lambda times=times: js.connection.reconnects == times - 1)  # type: ignore[misc]
            await js.connection.round_trip()
    assert attempts == ["named"] * 3


async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
    target.close()


@pytest.mark.parametrize("together", [True, False])
async def test_what_arrives_before_tls_is_dropped(serve: Serve, authority: Authority, together: bool) -> None:
    """Before TLS, an attacker in the network can add anything to INFO."""
    server = serve(authority.config() + USER)
    injected = b"PONG\r\n-ERR 'Authorization Violation'\r\nPING\r\nMSG a 1 5\r\nfalse\r\n"
    heard = bytearray()

    async def on_the_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(await there.readline() + injected * together)
        if not together:
            await asyncio.sleep(0)
            writer.write(injected)
        heard.extend(first := await reader.read(1 << 16))
        back.write(first)
        with suppress(OSError):
            await asyncio.gather(pipe(reader, back), pipe(there, writer))

    async with pretend(on_the_way) as port:
        settings = ConnectionSettings(
            servers=f"tls://localhost:{port}", user="airflow", password=PASSWORD, tls_ca=str(authority.ca)
        )
        await works(settings)
    assert heard.startswith(b"\x16\x03")  # a TLS handshake, and not an answer


async def test_a_server_that_answers_no_ping_is_left(mortal: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PING_EVERY", 0.1)
    async with Connection.open(ConnectionSettings(servers=mortal.url, connect_timeout=1)) as connection:
        await asyncio.sleep(1)  # all of its PINGs are answered
        assert connection.is_connected
        with frozen(mortal):
            await until(lambda: not connection.is_connected)
        await until(lambda: connection.reconnects == 1)
        assert await answers(connection)


async def test_an_unsafe_subject_sends_nothing(settings: ConnectionSettings) -> None:
    async with Connection.open(settings) as connection:
        traffic = Traffic(connection)
        for unsafe in ("", "a b", "a\r\nPING", "a\tb"):
            with pytest.raises(InvalidValue, match="subject="):
                await connection.publish(unsafe)
            with pytest.raises(InvalidValue, match="subject="):
                await connection.request(unsafe)
            with pytest.raises(InvalidValue, match="subject="):
                async with connection.listen(unsafe, lambda _: None):
                    pytest.fail("it was sent")
        with pytest.raises(InvalidValue, match="subject="):
            await connection.publish("a", reply="b\r\nPUB c 0\r\n")
        assert traffic.sent == 0
        assert await answers(connection)
