"""The page JetStream on the real Airflow: five faults, one after the other, are recognised from the overview alone and,
where the page can repair them, repaired there. Makes the pictures in docs/page.md.

`make walk` runs this file; `make test` does not collect it.
"""

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Locator, Page, expect

from demo.nats_server import NatsServer
from demo.stack import Stack
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.sequences import Sequences
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.airflow_system.judge import Judge
from tests.airflow_system.run import Run
from tests.walk.browser import opened, picture

Result = TypeVar("Result")

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images"
FOLDER = ROOT / "build" / "tests" / "page"
DAGS = ROOT / "tests" / "airflow_system" / "dags"
CONSUMER = "work"
USERS = """authorization { users: [
  { user: "all", password: "secret" }
  { user: "some", password: "secret", permissions: { publish: { deny: ["$KV.airflow_claims.>"] } } }
] }"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    dags = FOLDER / "dags"
    dags.mkdir(parents=True)
    shutil.copy(DAGS / "handoff.py", dags)
    stack = Stack(FOLDER / "stack", dags, {"HANDOFF_OUT": str(FOLDER / "out")})
    extra = {"servers": stack.nats.url, "shortest_ack_wait": 1}
    stack.environment["AIRFLOW_CONN_NATS_DEFAULT"] = json.dumps({"conn_type": "nats", "extra": extra})
    with stack:
        stack.airflow.wait_for_dag("handoff", 240)
        stack.airflow.pause("handoff", paused=False)
        yield stack


@pytest.fixture(scope="module")
def judge(stack: Stack) -> Judge:
    return Judge(stack.nats_url, FOLDER / "out", CONSUMER)


@pytest.fixture
def run(stack: Stack, judge: Judge, tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """A run for the stream that the test names, because the pictures show its name."""
    return Run(stack, judge, tmp_path / "gate", 50, stream=request.param)


def asked(stack: Stack, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
    """Call a function with a connection to the stack's server."""

    async def connected() -> Result:
        async with connect(ConnectionSettings(servers=stack.nats_url, shortest_ack_wait=1, ledger="airflow")) as js:
            return await function(js)

    return asyncio.run(connected())


@contextmanager
def overview(stack: Stack, folder: Path, connection: str = "nats_default") -> Iterator[Page]:
    with opened(stack, folder / "profile", 1300, 760) as page:
        page.goto(f"{stack.airflow.url}/plugin/jetstream?connection={connection}")
        expect(page.get_by_role("heading", name="JetStream", level=1)).to_be_visible()
        yield page


def finding(page: Page, stream: str, says: str) -> Locator:
    """The finding of a stream at the top of the overview."""
    return (
        page.get_by_role("region", name="Needs attention")
        .get_by_role("listitem")
        .filter(has_text=re.compile(f"(?=.*{re.escape(stream)}).*{says}", re.DOTALL))
    )


def confirm(page: Page, name: str, typed: str = "") -> None:
    dialog = page.get_by_role("alertdialog")
    if typed:
        dialog.get_by_label("to confirm").fill(typed)
    dialog.get_by_role("button", name=name, exact=True).click()
    dialog.get_by_role("button").filter(has_text="Close").click()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("run", ["METERS"], indirect=True)
@pytest.mark.timeout(900)
def test_a_paused_dag_is_named(stack: Stack, judge: Judge, run: Run, tmp_path: Path) -> None:
    run.start()
    run.open_the_gate()
    run.ends_well()
    stack.airflow.pause("handoff")
    try:
        judge.publish(run.stream, 40)
        with overview(stack, tmp_path) as page:
            found = finding(page, run.stream, "DAG handoff is paused.*A backlog of 40 messages waits")
            expect(found).to_be_visible(timeout=180_000)
            expect(found.get_by_role("link", name="Open the Dag")).to_be_visible(timeout=180_000)
            expect(found).to_contain_text("(paused)")
            picture(page, PICTURES / "page_overview.png")
    finally:
        stack.airflow.pause("handoff", paused=False)


@pytest.mark.parametrize("run", ["FLIGHTS"], indirect=True)
@pytest.mark.timeout(900)
def test_the_claim_of_a_dead_worker_is_released(stack: Stack, judge: Judge, run: Run, tmp_path: Path) -> None:
    run.start()
    run.at_work()
    process = run.process()
    supervisor = process.parent()
    assert supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    process.kill()
    (claim,) = judge.tokens(run.id)
    with overview(stack, tmp_path) as page:
        found = finding(page, run.stream, "is dead or cut off")
        expect(found).to_be_visible()
        expect(found.get_by_role("link").filter(has_text="handoff / work[0]")).to_be_visible()
        found.get_by_role("link", name=claim).click()
        expect(page.get_by_text("What happens next")).to_be_visible()
        expect(page.get_by_role("heading", name=f"Claim {claim}")).to_be_visible()
        picture(page, PICTURES / "page_claim.png")
        page.go_back()
        found.get_by_role("button", name="Release").click()
        confirm(page, "Release", claim)
        expect(finding(page, run.stream, "is dead or cut off")).to_have_count(0)
        expect(finding(page, run.stream, "No sensor pulls.*50 messages wait")).to_be_visible()
    assert judge.tokens(run.id) == {claim: None}
    assert judge.pending(run.stream)[0] + judge.pending(run.stream)[1] == run.count


@pytest.mark.parametrize("run", ["INVOICES"], indirect=True)
@pytest.mark.timeout(600)
def test_a_paused_consumer_is_resumed(stack: Stack, judge: Judge, run: Run, tmp_path: Path) -> None:
    run.start()
    run.open_the_gate()
    run.ends_well()
    asked(stack, lambda js: js.stream(run.stream).consumer(CONSUMER).pause(datetime.now(UTC) + timedelta(hours=1)))
    judge.publish(run.stream, 30)
    with overview(stack, tmp_path) as page:
        found = finding(page, run.stream, "is paused until .* backlog of 30 messages")
        expect(found).to_be_visible()
        found.get_by_role("button", name="Resume").click()
        confirm(page, "Resume")
        expect(finding(page, run.stream, "is paused until")).to_have_count(0)
    info = asked(stack, lambda js: js.stream(run.stream).consumer(CONSUMER).info())
    assert not info.paused


@pytest.mark.parametrize("run", ["PAYMENTS"], indirect=True)
@pytest.mark.timeout(600)
def test_a_poison_message_is_replayed(stack: Stack, judge: Judge, run: Run, tmp_path: Path) -> None:
    judge.publish(run.stream, 5)

    async def rejected(js: JetStream) -> None:
        owner = ("handoff", "manual", "claims", -1, 0, "")
        taking = Taking(
            stream=run.stream,
            consumer=CONSUMER,
            owner=owner,
            max_messages=100,
            gather=timedelta(0),
            consumer_config={"ack_wait": timedelta(seconds=5)},
        )
        take = Take(js, taking)
        await take.prepare()
        (claim,) = await take.take(30)
        take.handed_on()
        async with Hold.begin(js, claim, try_number=1, holder=("handoff", "manual", "work", 0, 1)) as hold:
            await hold.reject(Sequences.of([3]), "the column 'price' is not a number")
            await hold.settle()

    asked(stack, rejected)
    with overview(stack, tmp_path) as page:
        found = finding(page, run.stream, "has 1 dead letter.* 'price' is not a number")
        expect(found).to_be_visible()
        found.get_by_role("link", name="See dead letters").click()
        page.get_by_role("button", name=re.compile("Content of dead letter")).click()
        expect(page.get_by_role("region", name=re.compile("Payload of dead letter"))).to_be_visible()
        picture(page, PICTURES / "page_dead_letters.png")
        page.get_by_label(re.compile("^Select message")).check()
        page.get_by_role("button", name="Replay…").click()
        confirm(page, "Replay")
        page.get_by_role("link", name="Overview").click()
        expect(finding(page, run.stream, "dead letter")).to_have_count(0)
    assert judge.stored(run.stream) == 6


@pytest.mark.timeout(600)
def test_a_missing_permission_is_named(stack: Stack, tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", USERS)
    server.start()
    try:
        extra = {"servers": server.url, "shortest_ack_wait": 1}
        stack.airflow.connection("limited", extra, login="some", password="secret")

        async def taken() -> None:
            settings = ConnectionSettings(
                servers=server.url, user="all", password="secret", shortest_ack_wait=1, ledger="airflow"
            )
            async with connect(settings) as js:
                await js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
                await js.publish("orders.1", b"1")
                owner = ("handoff", "manual", "claims", -1, 0, "")
                take = Take(js, Taking(stream="ORDERS", consumer=CONSUMER, owner=owner, max_messages=10))
                await take.prepare()
                assert await take.take(30)
                take.handed_on()

        asyncio.run(taken())
        with overview(stack, tmp_path, "limited") as page:
            found = finding(page, "ORDERS", r"not permitted to publish on '\$KV\.airflow_claims")
            expect(found).to_be_visible()
            assert "secret" not in page.content()
    finally:
        server.stop()
