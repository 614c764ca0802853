"""Where a message would go. Over two servers: test_domains.py."""

from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue, PermissionDenied, ProtocolError
from jetstream_client.more.route import Route, onward
from tests.jetstream_client.servers import Ask, Serve


async def test_every_stream_that_listens_and_nothing_stored(js: JetStream, ask: Ask, name: str) -> None:
    """The message is not delivered to plain subscribers either."""
    await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    heard: list[Any] = []
    async with js.connection.listen(f"{name}.>", heard.append):
        assert (await js.route(f"{name}.a", b"data", headers={"Nats-Msg-Id": "one"})).streams == [name]
        await js.connection.flush()
    assert heard == []
    short, long = [await js.route(f"{name}.a", data, headers={"Kind": ["x", "y"]}) for data in (b"", b"x" * 100)]
    assert short.raw[0]["request"]["header"]["Kind"] == ["x", "y"]
    assert long.raw[0]["request"]["msgsize"] - short.raw[0]["request"]["msgsize"] == 100
    assert (await ask(f"STREAM.INFO.{name}"))["state"]["last_seq"] == 0
    assert not (await js.publish(f"{name}.a", b"data", msg_id="one")).duplicate
    assert (await js.route(f"nobody.{name}")).streams == []
    with pytest.raises(InvalidValue):
        await js.route(f"{name}.*")


async def test_a_subject_that_is_forbidden(serve: Serve) -> None:
    server = serve(
        'authorization { users: [ { user: "a", password: "b", permissions: { publish: { deny: ["S.no"] } } } ] }'
    )
    async with connect(ConnectionSettings(servers=server.url, user="a", password="b", request_timeout=1)) as js:
        await js.create_stream({"name": "S", "subjects": ["S.>"]})
        assert (await js.route("S.yes")).streams == ["S"]
        with pytest.raises(PermissionDenied, match=r"S\.no"):
            await js.route("S.no")


@pytest.mark.parametrize("said", [{}, {"events": 3}, {"events": ["js"]}, {"events": [{"type": "js"}]}])
def test_a_trace_that_is_none(said: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        Route.parse([said])


@pytest.mark.parametrize("hops", ["x", -1, None, 1.5])
def test_servers_that_cannot_be_counted(hops: object) -> None:
    with pytest.raises(ProtocolError):
        onward({"hops": hops})
