"""Credentials that expire or are replaced while they are used: what was renewed in its file is used, and everything
that waits goes on."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.message import Message
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.errors import AuthenticationFailed, ConnectionEnded
from jetstream_client.publish.bulk import Publishable, publish_all
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.message import RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.settings import environment_name
from tests.jetstream_client.callout import Callout
from tests.jetstream_client.expiring import SHORT, Expiring, reload
from tests.jetstream_client.servers import Authority, Serve
from tests.jetstream_client.until import until


@pytest.fixture
def expiring(serve: Serve, tmp_path: Path) -> Expiring:
    return Expiring(serve, tmp_path)


async def test_what_waits_on_the_connection_goes_on(expiring: Expiring) -> None:
    expiring.renew(SHORT)
    async with connect(expiring.settings) as js:
        expiring.renew()
        stream = await js.create_stream({"name": "S", "subjects": ["S.>"]})
        consumer = await stream.create_consumer({"name": "c", "ack_policy": "explicit"})
        read: list[Message] = []

        async def note(message: Message) -> None:
            read.append(message)

        pulling = Pulling(expires=60, heartbeat=2)
        ordered, pushed = stream.ordered_consumer(), stream.ordered_consumer(push=True)
        async with (
            consumer.consume(note, pulling, ack=True),
            ordered.consume(note, pulling),
            pushed.consume(note, pulling),
        ):
            await js.publish("S.a")
            await until(lambda: len(read) == 3)
            await until(lambda: js.connection.reconnects == 1)
            await js.publish("S.b")
            await until(lambda: len(read) == 6)
        assert not js.connection.ended


def numbered(count: int, pause: Callable[[int], object], subject: str = "S.a") -> Iterator[Publishable]:
    for number in range(count):
        pause(number)
        yield subject, b"%d" % number


def test_bulk_work_goes_on(expiring: Expiring) -> None:
    """Publishing, and both ways to read, while the credentials of their first connections expire."""
    everything = Sequences.from_ranges([(1, 10_000)])
    all_began = threading.Barrier(3, expiring.renew)

    def expires(at: int) -> Callable[[int], object]:
        def pause(number: int) -> None:
            if number == at:
                all_began.wait()
                time.sleep(max(0.0, expiring.end_of_first + 0.5 - time.time()))

        return pause

    async def create() -> str:
        async with connect(expiring.settings) as js:
            await js.create_stream({"name": "T", "subjects": ["T.>"]})
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            return (await stream.info()).created

    def publish() -> None:
        messages = numbered(10_000, expires(5_000), "T.a")
        published = publish_all(expiring.settings, messages, stream="T", scope="once")
        assert (published.count, published.last) == (10_000, 10_000)

    def read(how: Callable[..., Iterator[RawMessages]]) -> None:
        found: list[int] = []
        pause = expires(1)
        for number, batch in enumerate(how(expiring.settings, "S", everything, created)):
            pause(number)
            found += batch.sequences
        assert found == list(range(1, 10_001))

    expiring.renew()
    created = asyncio.run(create())
    publish_all(expiring.settings, numbered(10_000, lambda _: None))
    expiring.renew(SHORT)
    with ThreadPoolExecutor(3) as pool:
        for ended in [pool.submit(publish), pool.submit(read, direct.read), pool.submit(read, by_consumer.read)]:
            ended.result()


async def test_what_is_not_renewed_ends_with_the_remedy(expiring: Expiring) -> None:
    expiring.renew(SHORT)
    async with connect(expiring.settings) as js:
        await js.create_stream({"name": "S", "subjects": ["S.>"]})
        bulk = asyncio.to_thread(publish_all, expiring.settings, numbered(2_000, lambda _: time.sleep(0.002)))
        with pytest.raises(AuthenticationFailed, match=r"the credentials expired at .*, so renew them"):
            await bulk
        await until(lambda: js.connection.ended)
        with pytest.raises(ConnectionEnded, match=r"the credentials expired at .*, so renew them"):
            await js.account_info()
        expiring.renew()  # too late for those who waited, and in time for those who still hold claims
        await until(lambda: not js.connection.ended)
        await js.account_info()


async def test_a_file_that_is_missing_for_a_moment_is_one_failed_attempt(expiring: Expiring) -> None:
    expiring.renew(SHORT)
    async with connect(expiring.settings) as js:
        expiring.path.unlink()
        session = js.connection._session
        await until(lambda: bool(session._unreadable))
        expiring.renew()
        await until(lambda: js.connection.reconnects == 1)
        await js.account_info()


@pytest.mark.parametrize("kind", ["password", "token"])
async def test_a_secret_that_is_replaced_on_the_server_and_in_its_file(serve: Serve, tmp_path: Path, kind: str) -> None:
    def config(secret: str) -> str:
        return f"authorization {{ {'user: a, password' if kind == 'password' else 'token'}: {secret} }}"

    path = tmp_path / "secret"
    path.write_text("before")
    server = serve(config("before"))
    who = {"user": "a", "password": path.as_uri()} if kind == "password" else {"token": path.as_uri()}
    settings = ConnectionSettings(servers=server.url, **who)  # type: ignore[arg-type]
    async with connect(settings) as js:
        await js.create_stream({"name": "S", "subjects": ["S.>"]})
        halfway = asyncio.Event()
        loop = asyncio.get_running_loop()

        def pause(number: int) -> None:
            if number == 5_000:
                path.write_text("after")
                reload(server, config("after"))
                loop.call_soon_threadsafe(halfway.set)
                asyncio.run_coroutine_threadsafe(until(lambda: js.connection.reconnects == 1), loop).result()

        published = await asyncio.to_thread(publish_all, settings, numbered(10_000, pause), scope="once")
        assert published.count == 10_000
        assert halfway.is_set()
        await js.account_info()


async def test_users_whom_a_callout_admits_for_a_short_time(serve: Serve) -> None:
    """They authenticate again. The service decides whether they may come back."""
    callout = Callout(1)
    server = serve(callout.config)
    async with callout.serving(server.url):
        settings = ConnectionSettings(servers=server.url, user="ada", password="hidden", connect_timeout=1)
        async with connect(settings) as js:
            await js.create_stream({"name": "S", "subjects": ["S.>"]})
            published = await asyncio.to_thread(
                publish_all, settings, numbered(15, lambda _: time.sleep(0.2)), scope="once"
            )
            assert published.count == 15
            await until(lambda: js.connection.reconnects > 0)
            assert callout.admitted >= 4
            callout.admits = False
            await until(lambda: js.connection.ended)
            with pytest.raises(ConnectionEnded, match="correct the user or the password"):
                await js.account_info()


async def test_a_client_certificate_that_is_renewed_in_its_file(serve: Serve, tmp_path: Path) -> None:
    """The server accepts only the new one, as if the old one had expired: it looks at certificates in handshakes."""
    old, new = (Authority(tmp_path / name) for name in ("old", "new"))

    def config(authority: Authority) -> str:
        return old.config(f'ca_file: "{authority.ca}", verify: true')

    files = tmp_path / "client.pem", tmp_path / "client.key"

    def present(authority: Authority) -> None:
        for source, target in zip(authority.issue("client"), files, strict=True):
            target.with_suffix(".new").write_bytes(source.read_bytes())
            target.with_suffix(".new").rename(target)

    present(old)
    server = serve(config(old))
    settings = ConnectionSettings(
        servers=f"tls://localhost:{server.port}",
        tls_ca=str(old.ca),
        tls_certificate=str(files[0]),
        tls_private_key=str(files[1]),
    )
    async with connect(settings) as js:
        server.kill()
        present(new)
        server._config = config(new)
        await asyncio.to_thread(server.start)
        await until(lambda: js.connection.reconnects == 1)
        await js.account_info()
        with Wire.open(settings) as wire:
            wire.api("INFO")


async def test_a_password_that_is_looked_up_again(serve: Serve) -> None:
    """The settings come from a place that has the new password, as an Airflow connection does."""

    def config(secret: str) -> str:
        return f"authorization {{ user: a, password: {secret} }}"

    server = serve(config("before"))
    current = ConnectionSettings(servers=server.url, user="a", password="before")
    asked: list[str] = []

    def source() -> ConnectionSettings:
        asked.append(str(current.password))
        return replace(current, servers="nats://elsewhere:1")  # only credentials are used

    settings = replace(current, source=source)
    async with connect(settings) as js:
        await js.create_stream({"name": "S", "subjects": ["S.>"]})
        reload(server, config("after"))
        await until(lambda: bool(asked))  # nothing has changed there yet
        assert not js.connection.is_connected
        with pytest.raises(AuthenticationFailed, match="correct the user or the password"):
            await asyncio.to_thread(Wire.open, settings)
        current = replace(current, password="after")
        published = await asyncio.to_thread(publish_all, settings, numbered(10, lambda _: None))
        assert published.count == 10
        await until(lambda: js.connection.reconnects == 1)
        await js.account_info()
    assert settings == replace(settings, source=None)
    assert "source" not in settings.to_json()


async def test_settings_in_a_file_that_is_replaced(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the executors of a cluster, which have a file with the settings."""

    def config(secret: str) -> str:
        return f"authorization {{ user: a, password: {secret} }}"

    server = serve(config("before"))
    path = tmp_path / "settings.json"
    monkeypatch.setenv(environment_name("nats_default"), str(path))

    def present(password: str) -> None:
        path.write_text(ConnectionSettings(servers=server.url, user="a", password=password).to_json())

    present("before")
    settings = ConnectionSettings.from_environment("nats_default")
    async with connect(settings) as js:
        await js.create_stream({"name": "S", "subjects": ["S.>"]})
        present("after")
        reload(server, config("after"))
        await until(lambda: js.connection.reconnects == 1)
        assert (await asyncio.to_thread(publish_all, settings, numbered(10, lambda _: None))).count == 10
        path.unlink()
        reload(server, config("later"))
        await until(lambda: not js.connection.is_connected)
        with pytest.raises(AuthenticationFailed):  # the failed look-up is logged
            await asyncio.to_thread(Wire.open, settings)
