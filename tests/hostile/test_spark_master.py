"""Any server at the address of a Spark master: errors of this package, in bounded time and memory."""

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from airflow_nats_jetstream.errors import SparkMasterRefused, SparkMasterUnavailable
from airflow_nats_jetstream.spark import master as spark_master
from airflow_nats_jetstream.spark.master import LOST, SparkMaster, Submission

JOB = Submission("/job.py")
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
Asked = Callable[[SparkMaster], Awaitable[Any]]
ASKED: dict[str, Asked] = {
    "submit": lambda master: master.submit(JOB, "job"),
    "state": lambda master: master.state("driver-1"),
    "kill": lambda master: master.kill("driver-1"),
    "find": lambda master: master.find("job", 0),
}


def plain(body: bytes, status: str = "200 OK", *lines: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *lines])
    return head.encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def answering(*parts: bytes, every: float = 0) -> AsyncIterator[SparkMaster]:
    """A server that answers every request with these bytes, and with a pause after each part."""
    answers: set[asyncio.Task[Any]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(every)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()  # or its transport outlives the test

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.add(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1")
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield SparkMaster("spark://127.0.0.1:7077", (f"{address}/v1/submissions",), address)
    finally:
        # asyncio (3.11) leaks a connection that was accepted, but has no transport yet, when its server is closed.
        while any("_accept_connection" in repr(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.close()
    await asyncio.gather(*answers)  # they end when they find that nobody reads; a slow machine may have asked nothing


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return gzip.compress(json.dumps({"success": True, "message": "0" * (64 << 20)}).encode(), 1)


@pytest.mark.parametrize("asked", ASKED)
async def test_nothing_is_decompressed(asked: str, bomb: bytes) -> None:
    async with answering(plain(bomb, "200 OK", "Content-Encoding: gzip")) as master:
        tracemalloc.start()
        try:
            start = time.monotonic()
            with pytest.raises(SparkMasterUnavailable, match="sent a compressed answer"):
                await ASKED[asked](master)
            assert time.monotonic() - start < 5
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("asked", ASKED)
async def test_a_large_answer_is_not_read_to_its_end(asked: str) -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
    async with answering(endless, *[b" " * (1 << 18)] * 400) as master:
        with pytest.raises(SparkMasterUnavailable, match="more than 1,048,576 bytes"):
            await ASKED[asked](master)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
async def test_an_answer_that_trickles_ends_in_time(asked: str, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_master, "_ANSWER", 0.5)
    async with answering(
        head, *[b"a: b\r\n" if head and head[-4:] != b"\r\n\r\n" else b"{"] * 200, every=0.2
    ) as master:
        start = time.monotonic()
        with pytest.raises(SparkMasterUnavailable):
            await ASKED[asked](master)
        assert time.monotonic() - start < 20  # the whole answer would take forty


SHAPES = ["null", "[]", "7", "{}", "{", "\xff", "[" * 500_000, '{"a":' * 100_000, "9" * 900_000]
FIELDS: list[Any] = [None, 7, "", "x\n\x1b[2J", "../../kill", "a" * 201, [], {}, True]


@pytest.mark.parametrize("asked", ["submit", "state", "kill"])
@pytest.mark.parametrize("shape", SHAPES, ids=[each[:6] for each in SHAPES])
async def test_an_answer_of_another_shape_is_an_error_of_ours(asked: str, shape: str) -> None:
    async with answering(plain(shape.encode("latin-1"))) as master:
        with pytest.raises(SparkMasterUnavailable, match="if this is not the address of a Spark master"):
            await ASKED[asked](master)
    async with answering(plain(shape.encode("latin-1"), "500 No")) as master:
        with pytest.raises(SparkMasterRefused, match="500"):
            await ASKED[asked](master)


@pytest.mark.parametrize("value", FIELDS, ids=repr)
async def test_fields_of_another_type_are_errors_of_ours(value: Any) -> None:
    async with answering(plain(json.dumps({"success": True, "submissionId": value}).encode())) as master:
        with pytest.raises(SparkMasterUnavailable, match="submissionId"):
            await master.submit(JOB, "job")
    async with answering(plain(json.dumps({"success": True, "driverState": value}).encode())) as master:
        if value is None:
            assert await master.state("driver-1") == LOST
        else:
            with pytest.raises(SparkMasterUnavailable, match="driverState"):
                await master.state("driver-1")
    if type(value) is not bool:
        async with answering(plain(json.dumps({"success": value}).encode())) as master:
            with pytest.raises(SparkMasterUnavailable, match="without the field 'success'"):
                await master.kill("driver-1")
    driver = {"id": value, "mainclass": SUBMIT, "starttime": "2000000"}
    pages: list[Any] = [value, [value], [driver]]
    pages.append([{**driver, "id": "driver-1", "starttime": value}])
    for drivers in pages:
        page = {"activedrivers": drivers, "activeapps": [{"name": "job"}, value]}
        async with answering(plain(json.dumps(page).encode())) as master:
            assert await master.find("job", 1_000) is None


async def test_what_a_master_says_is_shown_without_control_characters() -> None:
    said = json.dumps({"success": False, "message": "no\x1b[2J\x00\u202e " + "x" * 1_000}).encode()
    async with answering(plain(said)) as master:
        with pytest.raises(SparkMasterRefused) as refused:
            await master.submit(JOB, "job")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600
