"""Both connections against an imposter instead of a server: bounded time and memory, and an error of this package."""

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st

from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import ConnectionFailed, ConnectionLost, JetStreamError, RequestTimeout
from jetstream_client.wire import blocking
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import encode_publish
from tests.hostile.attack import attack

PASSWORD = "hidden-5e1"
LIMIT = 1.5  # seconds to connect
HANGS = 20  # seconds, on a machine that is busy with other tests too
INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'
GARBAGE = bytes(range(256)) * 256

Play = Callable[[socket.socket], None]


class Imposter:
    """Accepts connections on loopback and acts as told on each of them, until it is closed."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self._play(connection)

    def close(self) -> None:
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # to close it would not wake a thread that waits for it
        self._listener.close()


@pytest.fixture
def imposter() -> Iterator[Callable[[Play], ConnectionSettings]]:
    started: list[Imposter] = []

    def start(play: Play) -> ConnectionSettings:
        started.append(Imposter(play))
        return ConnectionSettings(
            servers=started[-1].url, user="airflow", password=PASSWORD, connect_timeout=LIMIT, request_timeout=0.5
        )

    yield start
    for each in started:
        each.close()


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def closes(connection: socket.socket) -> None:
    connection.close()


def closes_in_the_middle(connection: socket.socket) -> None:
    connection.sendall(INFO[:30])


def closes_after_info(connection: socket.socket) -> None:
    connection.sendall(INFO)


def drips(connection: socket.socket) -> None:
    for byte in itertools.cycle(INFO[:-2]):
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


def garbage(connection: socket.socket) -> None:
    while True:
        connection.sendall(GARBAGE)


def endless_line(connection: socket.socket) -> None:
    connection.sendall(b"INFO {")
    while True:
        connection.sendall(b"x" * 65_536)


def enormous_info(connection: socket.socket) -> None:
    connection.sendall(b'INFO {"server_id":"' + b"x" * (900 << 10) + b'"}\r\n')
    silent(connection)


def deep_info(connection: socket.socket) -> None:
    connection.sendall(b"INFO " + b"[" * 500_000 + b"\r\n")
    silent(connection)


def says(text: bytes) -> Play:
    def play(connection: socket.socket) -> None:
        connection.sendall(text)
        while connection.recv(65_536):
            pass

    play.__name__ = repr(text[:40])
    return play


def pings_for_ever(connection: socket.socket) -> None:
    connection.sendall(INFO)
    while True:
        connection.sendall(b"PING\r\n+OK\r\n" * 1_000)


def answers_with(text: bytes) -> Play:
    def play(connection: socket.socket) -> None:
        connection.sendall(INFO)
        connection.recv(65_536)
        connection.sendall(text)
        while connection.recv(65_536):
            pass

    play.__name__ = f"answers {text[:40]!r}"
    return play


REFUSED = [
    silent,
    closes,
    closes_in_the_middle,
    closes_after_info,
    drips,
    garbage,
    endless_line,
    enormous_info,
    deep_info,
    pings_for_ever,
    says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    says(b"INFO []\r\n"),
    says(b"INFO 5\r\n"),
    says(b"INFO {}\r\n"),
    says(b"INFO not json\r\n"),
    says(b'INFO {"server_id":"x","max_payload":"many"}\r\n'),
    says(b'INFO {"server_id":"x","nonce":7}\r\n'),
    says(b'INFO {"server_id":"x","connect_urls":[{}]}\r\n'),
    says(b"INFO \xff\xfe\r\n"),
    says(b"MSG a 1 99999999999\r\n"),
    answers_with(b"-ERR\r\n"),
    answers_with(b"-ERR 'Authorization Violation'\r\n"),
    answers_with(b"-ERR '" + b"x" * 900_000 + b"'\r\n"),
    answers_with(b"HELLO\r\n"),
    answers_with(b"MSG a 1 -5\r\n"),
]


def bounded(error: BaseException, begin: float, memory: int) -> None:
    assert time.monotonic() - begin < HANGS
    assert PASSWORD not in str(error)
    assert len(str(error)) < 2_000
    assert peak() - memory < 400 << 20


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_the_bulk_connection_ends_in_time(imposter: Callable[[Play], ConnectionSettings]) -> None:
    memory = peak()

    def attacked(play: Play) -> None:
        settings, begin = imposter(play), time.monotonic()
        with pytest.raises(ConnectionFailed) as error:
            Wire.open(settings)
        bounded(error.value, begin, memory)

    with ThreadPoolExecutor(len(REFUSED)) as threads:  # concurrently, because most of them take the whole time limit
        ends = {play.__name__: threads.submit(attacked, play) for play in REFUSED}
    assert {name: error for name, end in ends.items() if (error := end.exception())} == {}


async def test_the_control_connection_ends_in_time(imposter: Callable[[Play], ConnectionSettings]) -> None:
    memory = peak()

    async def attacked(play: Play) -> None:
        settings, begin = imposter(play), time.monotonic()
        with pytest.raises(ConnectionFailed) as error:
            async with connect(settings):
                pass
        bounded(error.value, begin, memory)

    ends = await asyncio.gather(*map(attacked, REFUSED), return_exceptions=True)
    names = [play.__name__ for play in REFUSED]
    assert {name: end for name, end in zip(names, ends, strict=True) if end} == {}


def hear(connection: socket.socket, words: bytes, heard: bytes = b"") -> bytes:
    """Receive until these words came. Raises ConnectionError, which ends the thread, when the client closes."""
    while words not in heard:
        if not (data := connection.recv(65_536)):
            raise ConnectionError("the client has closed the connection")
        heard += data
    return heard


def greet(connection: socket.socket) -> bytes:
    """Begin as a server does, and return what the client sent behind its PING."""
    connection.sendall(INFO)
    heard = hear(connection, b"PING\r\n")
    connection.sendall(b"PONG\r\n")
    return heard.partition(b"PING\r\n")[2]


def floods(text: bytes) -> Play:
    """Accepts connections, and then sends the same without end, without reading."""

    def play(connection: socket.socket) -> None:
        greet(connection)
        time.sleep(0.05)
        block = text * max(1, (1 << 16) // len(text))
        while True:
            connection.sendall(block)

    play.__name__ = repr(text[:30])
    return play


FLOODS = [
    floods(b"PING\r\n"),
    floods(b"+OK\r\n"),
    floods(b"MSG other 99 1000\r\n" + b"x" * 1_000 + b"\r\n"),
    floods(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"),
    floods(b"x"),
    floods(GARBAGE),
    floods(b"MSG a 1 60000000\r\n"),
    floods(INFO),
]


@pytest.mark.parametrize("play", FLOODS, ids=lambda play: play.__name__)
def test_a_flood_ends_a_request_of_the_bulk_connection(
    play: Play, imposter: Callable[[Play], ConnectionSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "_MOST_KEPT", 32 << 20)
    begin, memory = time.monotonic(), peak()
    with Wire.open(imposter(play)) as connection, pytest.raises(JetStreamError) as error:
        connection.request("a.b", timeout=0.5)
    bounded(error.value, begin, memory)


def test_a_server_that_only_talks_takes_no_commands_for_ever(
    imposter: Callable[[Play], ConnectionSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "_PING_AFTER", 0.3)
    begin, memory = time.monotonic(), peak()
    with Wire.open(imposter(floods(b"+OK\r\n"))) as connection, pytest.raises(ConnectionLost, match="stopped reading"):
        connection.send(*[encode_publish("a.b", "", b"x" * 100_000)] * 1_000)
    bounded(error := ConnectionLost("-"), begin, memory + (200 << 20))
    assert error


@pytest.mark.parametrize("play", FLOODS, ids=lambda play: play.__name__)
async def test_a_flood_ends_a_request_of_the_control_connection(
    play: Play, imposter: Callable[[Play], ConnectionSettings]
) -> None:
    settings = imposter(play)
    memory = peak()
    async with asyncio.timeout(20):
        async with connect(settings) as js:
            begin = time.monotonic()
            with pytest.raises(JetStreamError) as error:
                await js.api("INFO")
            bounded(error.value, begin, memory)


@attack(st.binary(max_size=300) | st.sampled_from([INFO, b"PONG\r\n", b"+OK\r\n"]), weight=0.05)
def test_any_first_words(words: bytes) -> None:
    server = Imposter(says(INFO + words) if len(words) % 2 else says(words))
    try:
        with contextlib.suppress(ConnectionFailed, RequestTimeout):
            settings = ConnectionSettings(servers=server.url, connect_timeout=0.12, request_timeout=0.05)
            with Wire.open(settings) as connection:
                connection.api("INFO")
    finally:
        server.close()


@attack(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from([b"null", b"[]", b"{}", b'{"error": 5}', b'{"error": {"code": "x"}}', b"[" * 50_000]),
        st.builds(lambda value: json.dumps(value).encode(), st.integers() | st.text(max_size=5)),
    ),
    st.binary(max_size=20).map(lambda tail: b"NATS/1.0" + tail) | st.just(b""),
    weight=0.1,
)
def test_any_answer_to_a_request(data: bytes, header: bytes) -> None:
    def play(connection: socket.socket) -> None:
        subject = hear(connection, b"\r\nPUB", greet(connection)).split()[1].decode()
        frame = b"%b %b 1 %b\r\n" % (
            (b"HMSG", subject.encode(), b"%d %d" % (len(header), len(header) + len(data)))
            if header
            else (b"MSG", subject.encode(), b"%d" % len(data))
        )
        connection.sendall(frame + header + data + b"\r\n")
        connection.recv(1)

    server = Imposter(play)
    try:
        settings = ConnectionSettings(servers=server.url, connect_timeout=2, request_timeout=1)
        with Wire.open(settings) as connection:
            try:
                answer = connection.api("INFO")
            except JetStreamError:
                return
            assert isinstance(answer, dict)
    finally:
        server.close()
