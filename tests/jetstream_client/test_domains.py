"""Publishing and reading in another domain than that of the connected server, which has a stream of the same name."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from jetstream_client import connect
from jetstream_client.context import JetStream
from jetstream_client.errors import PublishFailed, StreamRecreated, WrongDomain
from jetstream_client.publish import bulk
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_client.wire import attempts
from tests.jetstream_handoff.domains import Domains


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Domains]:
    servers = Domains(tmp_path_factory.mktemp("domains"))
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture
async def sides(domains: Domains) -> AsyncIterator[list[JetStream]]:
    """The hub and the leaf node, each through a connection to its server."""
    async with connect(domains.settings("hub")) as hub, connect(domains.settings("leaf")) as leaf:
        yield [hub, leaf]


@pytest.fixture
async def name(sides: list[JetStream]) -> str:
    """A stream in both domains. Both listen on ``<name>.both.>``, and only the hub's on ``<name>.hub.>``."""
    name = f"S{secrets.token_hex(4)}"
    for js, side in zip(sides, ("hub", "leaf"), strict=True):
        subjects = [f"{name}.both.>", f"{name}.{side}.>"]
        await js.create_stream({"name": name, "subjects": subjects, "allow_direct": True})
    async with asyncio.timeout(30):  # the leaf node learns of the hub's interest at an unknown moment
        while not (await sides[1].route(f"{name}.hub.a")).streams:  # noqa: ASYNC110 # a server has no event
            await asyncio.sleep(0.05)
    return name


async def test_a_source_in_another_domain(sides: list[JetStream]) -> None:
    hub, leaf = sides
    origin, copy = f"O{secrets.token_hex(4)}", f"C{secrets.token_hex(4)}"
    await hub.create_stream({"name": origin, "subjects": [f"{origin}.>"]})
    await hub.publish(f"{origin}.a", b"from the hub")
    stream = await leaf.create_stream({"name": copy, "sources": [{"name": origin, "domain": "hub"}]})
    assert (await leaf.api(f"STREAM.INFO.{copy}"))["config"]["sources"][0]["external"]["api"] == "$JS.hub.API"
    async with asyncio.timeout(30):
        while not (await stream.info()).state["messages"]:  # noqa: ASYNC110 # a server has no event
            await asyncio.sleep(0.05)
    assert (await stream.get_message(1)).data == b"from the hub"
    assert (await leaf.with_options(domain="hub").stream(origin).get_message(1)).data == b"from the hub"


async def stored(sides: list[JetStream], name: str) -> list[int]:
    return [(await js.stream(name).info()).state["messages"] for js in sides]


async def until_stored(sides: list[JetStream], name: str, expected: list[int]) -> None:
    """Another server than the one that answered may store the message later, without any notice."""
    async with asyncio.timeout(30):
        while (now := await stored(sides, name)) != expected:
            assert all(count <= most for count, most in zip(now, expected, strict=True)), now
            await asyncio.sleep(0.05)


async def test_only_the_answers_of_the_domain_count(domains: Domains, sides: list[JetStream], name: str) -> None:
    """The leaf node's own stream is the first to answer, with other sequences."""
    await sides[1].publish(f"{name}.leaf.0")
    messages = [(f"{name}.both.{number}", b"%d" % number) for number in range(1_000)]
    published = publish_all(domains.settings("leaf", "hub"), messages, stream=name)
    assert (published.stored, published.first, published.last) == (1_000, 1, 1_000)
    await until_stored(sides, name, [1_000, 1_001])


async def test_what_only_another_domain_stored_is_no_success(
    domains: Domains, sides: list[JetStream], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ANSWERED_WITHIN", 0.3)
    monkeypatch.setattr(attempts, "RESUMED_WITHIN", 0.5)
    settings = domains.settings("leaf", "hub")
    with pytest.raises(PublishFailed, match="stored in domain 'leaf'") as failed:
        publish_all(settings, [(f"{name}.leaf.1", b"")], stream=name, scope="once")
    assert isinstance(failed.value.cause, WrongDomain)
    async with connect(settings) as js:
        with pytest.raises(WrongDomain, match="stored in domain 'leaf'"):
            await js.publish(f"{name}.leaf.2")
        assert (await js.publish(f"{name}.hub.2")).domain == "hub"
    await until_stored(sides, name, [1, 2])


async def test_a_route_leads_over_both_servers(sides: list[JetStream], name: str) -> None:
    leaf = sides[1]
    assert (await leaf.route(f"{name}.leaf.a")).streams == [name]
    route = await leaf.route(f"{name}.hub.a", b"data", headers={"Kind": ["x", "y"]})
    assert route.streams == [name]
    servers = [each["server"]["name"] for each in route.raw]
    assert len(set(servers)) == 2
    assert route.raw[0]["request"]["header"]["Kind"] == ["x", "y"]
    assert (await leaf.route(f"{name}.nobody")).streams == []
    assert await stored(sides, name) == [0, 0]


async def test_the_farther_server_may_be_heard_first(
    sides: list[JetStream], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf, inbox = sides[1], sides[1].connection.inbox
    heard: list[Any] = []

    def swapped(deliver: Callable[[Any], None]) -> Any:
        def receive(reply: Any) -> None:
            heard.append(reply)
            if len(heard) == 2:
                deliver(heard[1])
                deliver(heard[0])

        return inbox(receive)

    monkeypatch.setattr(leaf.connection, "inbox", swapped)
    route = await leaf.route(f"{name}.hub.a")
    assert route.streams == [name]
    assert {each["server"]["name"] for each in route.raw} == {"hub", "leaf"}


async def test_reads_the_stream_of_the_domain(domains: Domains, sides: list[JetStream], name: str) -> None:
    far = domains.settings("leaf", "hub")
    publish_all(far, [(f"{name}.hub.{number}", b"hub") for number in range(300)])
    publish_all(domains.settings("leaf"), [(f"{name}.leaf.{number}", b"leaf") for number in range(300)])
    created = [(await js.stream(name).info()).created for js in sides]
    wanted = Sequences.from_ranges([(1, 300)])
    messages = [message for batch in direct.read(far, name, wanted, created[0]) for message in batch]
    assert [message.sequence for message in messages] == list(range(1, 301))
    assert {message.data for message in messages} == {b"hub"}
    with pytest.raises(StreamRecreated):
        list(direct.read(far, name, wanted, created[1]))
