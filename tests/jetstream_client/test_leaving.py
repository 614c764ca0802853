"""A server leaves in lame duck mode, and the settings name only this one. Connections go on with the servers of the
cluster that it has named."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import ConnectionFailed
from jetstream_client.publish.bulk import Publishable, publish_all
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.message import RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from tests.jetstream_client.cluster import Cluster, replicated_stream
from tests.jetstream_client.servers import Authority
from tests.jetstream_client.until import until

QUICK = "lame_duck_duration: 30s\nlame_duck_grace_period: 1s\n"
COUNT = 10_000


async def test_everything_moves_to_the_other_servers(tmp_path: Path) -> None:
    with Cluster(tmp_path, QUICK) as cluster:
        async with connect(ConnectionSettings(servers=cluster.url)) as any_:
            stream = await replicated_stream(any_, subjects=("S", "T"))
            created = (await stream.info()).created
            leaving = await cluster.follower(stream)
        settings = ConnectionSettings(servers=leaving.url)
        async with connect(settings) as js:
            await asyncio.to_thread(publish_all, settings, [("S", b"")] * COUNT)
            began, left = threading.Barrier(4), threading.Event()

            def pause() -> None:
                began.wait()
                left.wait()

            def messages() -> Iterator[Publishable]:
                for number in range(COUNT):
                    if number == COUNT // 2:
                        pause()
                    yield "T", b"%d" % number

            def publish() -> int:
                # Other settings objects, as in another process: only this work's own connections have learned.
                return publish_all(ConnectionSettings(servers=leaving.url), messages(), scope="once").count

            def read(how: Callable[..., Iterator[RawMessages]]) -> list[int]:
                found: list[int] = []
                own = ConnectionSettings(servers=leaving.url)
                for batch in how(own, "S", Sequences.from_ranges([(1, COUNT)]), created):
                    if not found:
                        pause()
                    found += batch.sequences
                return found

            publishing = asyncio.create_task(asyncio.to_thread(publish))
            reading = [asyncio.create_task(asyncio.to_thread(read, how)) for how in (direct.read, by_consumer.read)]
            await asyncio.to_thread(began.wait)
            cluster.leaves(leaving)
            await until(lambda: not leaving.running, 60)
            left.set()
            assert await publishing == COUNT
            assert await asyncio.gather(*reading) == [list(range(1, COUNT + 1))] * 2
            await until(lambda: js.connection.reconnects == 1)
            with await asyncio.to_thread(Wire.open, js.settings) as wire:  # as a settlement does
                wire.api("INFO")
            with pytest.raises(ConnectionFailed):
                await asyncio.to_thread(Wire.open, ConnectionSettings(servers=leaving.url, connect_timeout=0.5))


async def test_with_tls_only_if_every_certificate_must_have_one_name(tmp_path: Path) -> None:
    """INFO is not encrypted, so an attacker could name a server for which it has a certificate."""
    authority = Authority(tmp_path / "authority")
    with Cluster(tmp_path, authority.config()) as cluster:
        leaving = cluster.nodes[0]
        settings = ConnectionSettings(servers=f"tls://localhost:{leaving.port}", tls_ca=str(authority.ca))
        named = ConnectionSettings(servers=settings.servers, tls_ca=settings.tls_ca, tls_hostname="localhost")
        async with connect(settings) as alone, connect(named) as moves:
            await until(lambda: len(named.named_addresses) == 3, 60)  # its own is also 127.0.0.1
            assert settings.named == ()
            leaving.kill()
            await until(lambda: moves.connection.reconnects == 1)
            with await asyncio.to_thread(Wire.open, named) as wire:
                assert wire.server["server_name"] != "n0"
            assert not alone.connection.is_connected


def test_what_a_server_names_is_checked() -> None:
    settings = ConnectionSettings(servers="nats://a:1", user="u", password="p")
    settings.learn(["b", "[::1]:5", "a:1", "u:p@c:1", "http://d:1", "e:99999", "f g", "-", ""] + ["h:4"] * 100)
    assert settings.named[:3] == ("nats://b", "nats://[::1]:5", "nats://a:1")
    assert settings.named_addresses[:2] == [("b", 4222), ("::1", 5)]
    assert {host for host, _ in settings.named_addresses} == {"b", "::1", "-", "h"}
    assert len(settings.named) < 100
    settings.learn([])
    settings.learn(None)
    assert settings.named_addresses
    assert "h:4" not in settings.to_json()
    elsewhere = ConnectionSettings(servers="nats://a:1,nats://z:1", learned=settings.learned)
    assert elsewhere.named == ()
