"""Servers that are too old would store a message and ignore its options. They are real, from wheels."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import PublishFailed, ServerTooOld
from jetstream_client.publish.bulk import publish_all, publish_fast
from jetstream_client.publish.schedule import Schedule
from tests.jetstream_client.servers import older_program

NO_INFO = 'authorization { users: [ { user: a, password: b, permissions: { publish: { deny: ["$JS.API.INFO"] } } } ] }'


async def fast(js: JetStream) -> None:
    async with js.fast_batch() as batch:
        await batch.add("S.x")
        await batch.commit()


Publish = Callable[[JetStream], Awaitable[Any]]

TOO_OLD: dict[str, list[tuple[str, Publish]]] = {
    "2.10.26": [
        ("2.11", lambda js: js.publish("S.x", ttl=timedelta(seconds=5))),
        ("2.11", lambda js: js.publish("S.x", headers={"Nats-TTL": "5s"})),
        ("2.11", lambda js: js.publish_async("S.x", ttl="never")),
        ("2.11", lambda js: js.route("S.x")),
        ("2.11", lambda js: js.publish("S.x", headers={"Nats-Trace-Dest": "t", "Nats-Trace-Only": "true"})),
        ("2.11", lambda js: js.publish("S.x", expected_last_subject_sequence=0, expected_last_subject="S.*")),
    ],
    "2.11.11": [
        ("2.12", lambda js: js.publish("S.x", increment=1)),
        ("2.12", lambda js: js.publish("S.x", schedule=Schedule("S.y", datetime.now(UTC)))),
        ("2.14", lambda js: js.publish("S.x", schedule=Schedule("S.y", "@hourly"))),
        ("2.14", lambda js: js.publish("S.x", schedule=Schedule("S.y", datetime.now(UTC), source="S.z"))),
        ("2.12", lambda js: js.publish_batch([("S.x", b"1"), ("S.x", b"2")])),
        ("2.14", fast),
    ],
}


@pytest.mark.parametrize("version", TOO_OLD)
async def test_what_a_server_would_ignore_is_not_sent(tmp_path: Path, version: str) -> None:
    server = NatsServer(tmp_path, program=older_program(version))
    server.start()
    try:
        settings = ConnectionSettings(servers=server.url)
        async with connect(settings) as js:
            await js.api("STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]})
            for needed, publish in TOO_OLD[version]:
                with pytest.raises(ServerTooOld, match=rf"nats-server {needed} or newer.*{version}"):
                    await publish(js)
            with pytest.raises(PublishFailed) as failed:
                publish_all(settings, [("S.x", b"", {"Nats-Incr": "+1"})])
            assert isinstance(failed.value.cause, ServerTooOld)
            with pytest.raises(ServerTooOld, match=r"2\.14"):
                publish_fast(settings, [("S.x", b"")])
            assert (await js.api("STREAM.INFO.S"))["state"]["messages"] == 0
            assert (await js.publish("S.x", b"", msg_id="one", expected_last_sequence=0)).seq == 1
    finally:
        server.stop()


async def test_who_may_not_ask_for_the_level_goes_by_the_version_of_the_server(tmp_path: Path) -> None:
    for folder, program in (("old", older_program("2.10.26")), ("new", None)):
        server = NatsServer(tmp_path / folder, NO_INFO, program=program)
        server.start()
        try:
            settings = ConnectionSettings(servers=server.url, user="a", password="b", request_timeout=1)
            async with connect(settings) as js:
                await js.api("STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]} | ({} if program else NEW))
                if program:
                    with pytest.raises(ServerTooOld):
                        await js.publish("S.x", ttl="never")
                else:
                    await js.publish("S.x", ttl="never")
        finally:
            server.stop()


NEW = {"allow_msg_ttl": True}
