"""Processing a claim on a real server: the effect of each outcome on ledger and consumer."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, Metadata

from airflow_nats_jetstream.compat import AirflowFailException, AirflowSkipException, AirflowTaskTimeout
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator, jetstream_task
from demo.nats_server import NatsServer
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import ConnectionSettings, environment_name
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HoldLost, LedgerUnavailable
from jetstream_handoff.ledger.ledger import Ledger
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.conftest import set_connection
from tests.airflow_nats_jetstream.steps import (
    CONNECTION,
    CONSUMER,
    claim,
    context_of,
    execute,
    info,
    publish,
    receipt,
    record,
    rendered,
    run,
    sensor,
)


def process(body: Callable[..., Any], value: Any, **changes: Any) -> JetStreamProcessOperator:
    given = {"task_id": "work", "nats_conn_id": CONNECTION, **changes}
    return JetStreamProcessOperator(python_callable=body, op_kwargs={"claim": value}, **given)


def count(claim: HeldClaim) -> int:
    return claim.count


def never(claim: HeldClaim) -> None:  # pragma: no cover - it must not be called
    raise AssertionError("the body must not run")


def test_settles_what_the_body_processed(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream, 25)
    seen: list[Any] = []

    def body(claim: HeldClaim) -> dict[str, int]:
        seen.extend([claim.id, claim.stream, claim.consumer, claim.count, claim.bytes, claim.attempt_id, claim.lost])
        assert ConnectionSettings.from_json(os.environ[environment_name(CONNECTION)]) == hook.settings
        assert info(hook, stream).ack_pending == 25  # nothing is acknowledged before the work is done
        return {"rows": claim.count}

    assert execute(process(body, value)) == {"rows": 25}
    assert seen[:5] == [value["id"], stream, CONSUMER, 25, 250]
    assert info(hook, stream).floor == 25
    (done,) = hook.committed(stream, CONSUMER)
    assert (done.attempt_id, done.value, done.sequences.count) == (seen[5], {"rows": 25}, 25)
    (attempt,) = done.history.attempts
    assert attempt.by[2:] == ("work", -1, 1)
    assert done.history.owner[2] == "claims"
    assert seen[6] == ""


class Counting:
    def __call__(self, claim: HeldClaim, more: int = 0) -> int:
        return claim.count + more


@pytest.mark.parametrize("body", [Counting(), partial(Counting(), more=0)], ids=["object", "partial"])
def test_whatever_takes_a_claim_can_be_called(hook: JetStreamHook, stream: str, body: Callable[..., int]) -> None:
    assert execute(process(body, claim(hook, stream, 25))) == 25
    assert info(hook, stream).floor == 25


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], r"\.expand\(claim=claims\)"),
        ([{"v": 1}], r"\.expand\(claim=claims\)"),
        (None, "let the sensor run before the task"),
        (7, "not int; pass a claim exactly as the sensor returned it"),
        ("claims", "not JSON"),
    ],
)
def test_what_is_no_claim_is_said_with_what_to_do(hook: JetStreamHook, given: Any, says: str) -> None:
    with pytest.raises(AirflowFailException, match=says):
        execute(process(never, given))


def test_a_retry_after_settling_returns_the_recorded_value(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    assert execute(process(count, value)) == 10
    assert execute(process(never, value), try_number=2) == 10


@pytest.mark.parametrize("error", [OSError, AirflowTaskTimeout])
def test_what_may_be_retried_waits_for_the_retry(hook: JetStreamHook, stream: str, error: type[BaseException]) -> None:
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> None:
        if error is OSError:
            raise OSError("the disk is full")
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(30)

    task = process(body, value, retry_delay=timedelta(seconds=1), execution_timeout=timedelta(seconds=30))
    with pytest.raises(error):
        execute(task, try_number=1, max_tries=1)
    entry = record(hook, stream).open[value["id"]]  # type: ignore[union-attr]
    assert entry.token is None
    with pytest.raises(Exception, match="fewer than 1"):  # leased to the retry for longer than ack_wait
        execute(sensor(stream, timeout=2.5), run_id="other")
    assert execute(process(count, value), try_number=2, max_tries=1) == 10


@pytest.mark.parametrize(
    ("error", "max_tries", "ends"),
    [
        (OSError("full"), 0, "failed"),
        (AirflowFailException("no"), 3, "failed"),
        (AirflowSkipException("no"), 3, None),
    ],
)
def test_a_last_failure_gives_the_messages_back(
    hook: JetStreamHook, stream: str, error: Exception, max_tries: int, ends: str | None
) -> None:
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> None:
        raise error

    with pytest.raises(type(error)):
        execute(process(body, value), max_tries=max_tries)
    ended = receipt(hook, stream, value["id"])
    assert (ended and ended.state) == ends
    (again,) = execute(sensor(stream, timeout=0.9), run_id="other")
    assert again["ranges"] == value["ranges"]


def test_a_time_out_in_the_middle_of_settling_does_not_cut_it(hook: JetStreamHook, stream: str) -> None:
    def body(claim: HeldClaim) -> int:
        # Settling waits until the claim is one second old, and the alarm fires meanwhile.
        time.sleep(max(0, start + 0.4 - time.monotonic()))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        return claim.count

    value = claim(hook, stream)
    start = time.monotonic()
    assert execute(process(body, value, execution_timeout=timedelta(seconds=30))) == 10
    assert [done.claim_id for done in hook.committed(stream, CONSUMER)] == [value["id"]]
    assert info(hook, stream).floor >= 10


@pytest.mark.parametrize("line", [3, 4, 6])  # before it is sent, after, and before it is waited for
def test_a_time_out_between_the_lines_of_settling_says_what_the_ledger_says(
    hook: JetStreamHook, stream: str, line: int
) -> None:
    left = line

    def strike(frame: FrameType, event: str, argument: Any) -> Any:
        """Raise what Airflow's alarm raises, at a place where the alarm can fire."""
        nonlocal left
        if frame.f_code is not HeldClaim._end.__code__:
            return None
        left -= event == "line"
        if left == 0:
            sys.settrace(None)
            raise AirflowTaskTimeout
        return strike

    def body(claim: HeldClaim) -> int:
        sys.settrace(strike)
        return claim.count

    value = claim(hook, stream)
    returned = None
    with suppress(AirflowTaskTimeout):
        returned = execute(process(body, value), max_tries=1)
    assert left == 0
    settled = [done.claim_id for done in hook.committed(stream, CONSUMER)] == [value["id"]]
    assert settled or returned is None
    assert execute(process(count, value), try_number=2, max_tries=1) == 10
    assert info(hook, stream).floor >= 10


def test_a_kill_releases_and_refuses_to_settle(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> int:
        started = time.monotonic()
        task.on_kill()
        while record(hook, stream).open[value["id"]].token is not None:  # type: ignore[union-attr]
            assert time.monotonic() - started < 20
            time.sleep(0.05)
        return claim.count

    task = process(body, value)
    with pytest.raises(HoldLost, match="killed"):
        execute(task)
    assert hook.committed(stream, CONSUMER) == []
    (again,) = execute(sensor(stream, timeout=0.9), run_id="other")
    assert again["ranges"] == value["ranges"]


@pytest.mark.parametrize("again", [False, True], ids=["first", "reprocess"])
def test_a_claim_that_a_kill_could_not_release_is_in_the_log(
    hook: JetStreamHook, stream: str, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    value = claim(hook, stream)
    bucket = f"{hook.settings.ledger}_{'receipts' if again else 'claims'}"

    def body(claim: HeldClaim) -> None:
        hook.run(lambda js: js.stream(f"KV_{bucket}").delete())
        task.on_kill()
        raise ConnectionResetError("the JVM is gone")

    if again:
        execute(process(count, value))
    task = process(body, value, on_settled="reprocess")
    with pytest.raises(ConnectionResetError):
        execute(task)
    (said,) = [each.getMessage() for each in caplog.records if "not released" in each.getMessage()]
    ends = "its messages stay settled" if again else r"its lease ends at [-0-9: ]{19} UTC at the latest"
    assert re.search(rf"claim {value['id']} .*{bucket}' does not exist.*; {ends}", said)


def test_a_kill_whose_release_gets_no_answer_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()
    monkeypatch.setattr("jetstream_handoff.hold.blocking._RELEASE_TIMEOUT", 0.5)
    set_connection(monkeypatch, servers=server.url, shortest_ack_wait=0.5)
    hook, stream = JetStreamHook(CONNECTION), "S"
    hook.run(lambda js: js.create_stream({"name": stream, "subjects": ["S.>"], "allow_direct": True}))
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> None:
        server.stop()
        task.on_kill()
        raise ConnectionResetError("the JVM is gone")

    task = process(body, value)
    try:
        with pytest.raises(ConnectionResetError):
            execute(task)
    finally:
        server.stop()
    (said,) = [each.getMessage() for each in caplog.records if "within 0.5 s" in each.getMessage()]
    assert re.search(rf"claim {value['id']} .*not released.*; its lease ends at [-0-9: ]{{19}} UTC at the latest", said)


def test_the_error_of_killed_work_is_its_own(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> None:
        task.on_kill()
        raise ConnectionResetError("the JVM is gone")

    task = process(body, value)
    with pytest.raises(ConnectionResetError):
        execute(task)
    assert record(hook, stream).open[value["id"]].token is None  # type: ignore[union-attr]


def test_a_newer_attempt_fences_the_older(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 10)
    # The older attempt does not look at the ledger before it settles.
    (value,) = execute(sensor(stream, consumer_config={"ack_wait": timedelta(seconds=60)}))
    newer: list[Any] = []

    def body(claim: HeldClaim) -> int:
        thread = threading.Thread(target=lambda: newer.append(execute(process(count, value), try_number=2)))
        thread.start()
        thread.join()
        return -1

    assert execute(process(body, value), max_tries=3) == 10  # the value that the newer attempt recorded, not its own -1
    assert newer == [10]
    (done,) = hook.committed(stream, CONSUMER)
    assert (done.value, done.token and done.token[:2]) == (10, "2-")


def test_work_sees_that_it_lost_the_claim(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> None:
        with hook.processing(value, try_number=2):
            deadline = time.monotonic() + 10
            while not claim.lost and time.monotonic() < deadline:
                time.sleep(0.1)
        raise RuntimeError(claim.lost)

    with pytest.raises(AirflowFailException, match="attempt 2-"):
        execute(process(body, value), max_tries=3)
    assert len(hook.committed(stream, CONSUMER)) == 1


def test_messages_that_were_claimed_again_are_superseded(hook: JetStreamHook, stream: str) -> None:
    (first,) = [claim(hook, stream)]
    hook.run(lambda js: release_lease(js, stream, first))
    (second,) = execute(sensor(stream), run_id="other")
    with pytest.raises(AirflowFailException, match="superseded"):
        execute(process(never, first), max_tries=3)
    assert execute(process(count, second)) == 10


async def release_lease(js: Any, stream: str, value: dict[str, Any]) -> None:
    from jetstream_handoff.hold import answers

    await answers.negative(Ledger(js, stream, CONSUMER), Claim.from_json(value).sequences)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": 11}, "count=11"),
        ({"ranges": [[1, 11]], "count": 11, "consumer_sequence": 11}, "ranges"),
        ({"ack_prefix": "$JS.ACK.OTHER.work"}, "ack_prefix"),
        ({"stream": "a b"}, "stream"),
        ({"v": 2}, "version"),
        ({"more": 1}, "more"),
    ],
)
def test_a_claim_that_was_tampered_with_is_refused(
    hook: JetStreamHook, stream: str, changes: dict[str, Any], says: str
) -> None:
    value = claim(hook, stream)
    with pytest.raises(AirflowFailException, match=says):
        execute(process(never, {**value, **changes}), max_tries=3)
    assert execute(process(count, value)) == 10  # nothing was lost


@pytest.mark.parametrize("value", [None, [], "text", 5])
def test_what_is_no_claim_is_refused(hook: JetStreamHook, stream: str, value: Any) -> None:
    with pytest.raises(AirflowFailException, match="claim"):
        execute(process(never, value), max_tries=3)


def test_a_recreated_consumer_is_refused(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    hook.run(lambda js: js.stream(stream).consumer(CONSUMER).delete())
    with pytest.raises(AirflowFailException, match="consumer not found"):
        execute(process(never, value), max_tries=3)
    claim(hook, stream, 1)
    with pytest.raises(AirflowFailException, match="consumer was recreated"):
        execute(process(never, value), max_tries=3)


def test_a_recreated_stream_is_refused(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    hook.run(lambda js: js.stream(stream).delete())
    hook.run(lambda js: js.create_stream({"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True}))
    claim(hook, stream)
    with pytest.raises(AirflowFailException, match="stream was recreated"):
        execute(process(never, value), max_tries=3)


@pytest.mark.parametrize(("result", "says"), [({1, 2}, "JSON"), ("x" * 9_000, "8192 bytes"), (float("nan"), "JSON")])
def test_a_value_that_cannot_be_recorded_is_refused_before_settling(
    hook: JetStreamHook, stream: str, result: Any, says: str
) -> None:
    value = claim(hook, stream)

    def body(claim: HeldClaim) -> Any:
        return result

    with pytest.raises(InvalidValue, match=says):
        execute(process(body, value), max_tries=1)
    assert hook.committed(stream, CONSUMER) == []
    assert execute(process(count, value), try_number=2, max_tries=1) == 10


@pytest.mark.parametrize("bucket", ["claims", "receipts"])
def test_without_the_ledger_nothing_is_acknowledged(hook: JetStreamHook, stream: str, bucket: str) -> None:
    value = claim(hook, stream)
    hook.run(lambda js: js.stream(f"KV_{hook.settings.ledger}_{bucket}").delete())
    with pytest.raises(LedgerUnavailable, match=bucket):
        execute(process(never, value))
    assert info(hook, stream).ack_pending == 10


def test_airflow_drives_a_generator_function_while_the_claim_is_held(hook: JetStreamHook, stream: str) -> None:
    """Airflow takes metadata of assets from it."""
    value, tokens = claim(hook, stream), []

    def rows(claim: HeldClaim) -> Any:
        for _ in range(2):
            entries = record(hook, stream)
            tokens.append(entries and entries.open[claim.id].token)
            yield Metadata(Asset("rows"), {"count": claim.count})
        return claim.count

    task = process(rows, value)
    context = context_of(task)
    assert run(task, context, task.execute) == 10
    assert len(set(tokens)) == 1
    assert all(tokens)
    assert context["outlet_events"][Asset("rows")].extra == {"count": 10}
    assert [each.value for each in hook.committed(stream, CONSUMER)] == [10]


def test_what_is_wrong_with_the_task_is_said_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidValue, match="parameter named 'claim'"):
        JetStreamProcessOperator(task_id="work", python_callable=print)
    with pytest.raises(InvalidValue, match=r"on_settled='again'.*'return', 'reprocess', 'fail'"):
        JetStreamProcessOperator(task_id="work", python_callable=count, on_settled="again")
    for longest in (timedelta(0), 3600, None):
        with pytest.raises(InvalidValue, match=r"longest_hold=.*timedelta"):
            JetStreamProcessOperator(task_id="work", python_callable=count, longest_hold=longest)  # type: ignore[arg-type]

    async def later(claim: HeldClaim) -> None: ...

    with pytest.raises(InvalidValue, match="async"):
        JetStreamProcessOperator(task_id="work", python_callable=later)

    def work(flights: HeldClaim) -> None: ...

    for unfit in (partial(work), "".join, partial(later), dict, lambda **claim: claim):
        with pytest.raises(InvalidValue, match="python_callable="):
            JetStreamProcessOperator(task_id="work", python_callable=unfit)
    with DAG("dag", schedule=None):  # the operator of a mapped task is created only when the task runs
        for decorate in (jetstream_task, jetstream_task(nats_conn_id=CONNECTION)):
            with pytest.raises(InvalidValue, match=r"'work'.*parameter named 'claim'"):
                decorate(work)


def test_a_settled_claim_fails_when_asked_to(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    execute(process(count, value), try_number=3, max_tries=5)
    (done,) = hook.committed(stream, CONSUMER)
    with pytest.raises(AirflowFailException, match=rf"settled as done by attempt {done.token} at \d{{4}}-\d\d-\d\dT"):
        execute(process(never, value, on_settled="fail"), try_number=4, max_tries=5)


def test_a_settled_claim_is_processed_again_when_asked_to(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    execute(process(count, value))
    (old,) = hook.committed(stream, CONSUMER)
    before = info(hook, stream)

    def body(claim: HeldClaim) -> str:
        assert (claim.id, claim.count, claim.attempt_id) != (old.claim_id, 10, old.attempt_id)
        (now,) = hook.committed(stream, CONSUMER)
        assert replace(now, history=old.history) == replace(old, again=claim.attempt_id.partition("-")[2])
        return claim.attempt_id

    task = process(body, value, on_settled="{{ params.on_settled }}")
    with pytest.raises(InvalidValue, match="on_settled"):  # a template that was not rendered
        execute(task, try_number=2)
    task.render_template_fields({"params": {"on_settled": "reprocess"}})
    attempt = execute(task, try_number=2)
    (new,) = hook.committed(stream, CONSUMER)
    assert (new.attempt_id, new.value, new.sequences) == (attempt, attempt, old.sequences)
    after = info(hook, stream)
    assert [(i.floor, i.counter, i.ack_pending, i.pending) for i in (before, after)] == [(10, 10, 0, 0)] * 2
    assert execute(process(never, value), try_number=3) == attempt  # a retry returns the value that counts now

    def broken(claim: HeldClaim) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        execute(process(broken, value, on_settled="reprocess"), try_number=3)
    (now,) = hook.committed(stream, CONSUMER)
    assert replace(now, history=new.history) == new
    hook.run(lambda js: js.stream(stream).purge(sequence=4))
    with pytest.raises(AirflowFailException, match=r"does not contain 3 of the requested messages \(sequences 1-3\)"):
        execute(process(never, value, on_settled="reprocess"), try_number=4, max_tries=9)
    (now,) = hook.committed(stream, CONSUMER)
    assert replace(now, history=new.history) == new


def test_a_hold_that_lasts_too_long_is_lost(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    again: list[Any] = []

    def body(claim: HeldClaim) -> int:
        while not claim.lost:
            time.sleep(0.05)
        again.extend(execute(sensor(stream, timeout=4), run_id="other"))  # while this attempt is still alive
        return claim.count

    with pytest.raises(AirflowFailException, match=r"held for longer than longest_hold \(1\.5 s\)"):
        execute(rendered(process(body, value, longest_hold="{{ params.longest }}"), {"longest": "PT1.5S"}), max_tries=3)
    assert [each["ranges"] for each in again] == [value["ranges"]]
    assert hook.committed(stream, CONSUMER) == []
    assert execute(process(count, again[0])) == 10


@pytest.mark.parametrize("on_settled", ["return", "fail", "reprocess"])
def test_a_second_task_over_the_same_claim_fails_and_names_the_first(
    hook: JetStreamHook, stream: str, on_settled: str
) -> None:
    """Before the ledger knew pieces of work, the second task was green with the value of the first."""
    value = claim(hook, stream)
    bodies: list[str] = []

    def make(task_id: str) -> JetStreamProcessOperator:
        def body(claim: HeldClaim) -> str:
            bodies.append(task_id)
            return task_id

        return process(body, value, task_id=task_id, on_settled=on_settled)

    assert execute(make("parquet"), map_index=0) == "parquet"
    other = ("warehouse", 0) if on_settled != "return" else ("parquet", 1)  # another task, or one of a cross product
    with pytest.raises(
        AirflowFailException, match=r"was settled by dag / run / parquet\[0\], try 1 at .*separate cons"
    ):
        execute(make(other[0]), map_index=other[1])
    assert bodies == ["parquet"]
    (receipt,) = hook.committed(stream, CONSUMER)
    assert receipt.value == "parquet"


def test_the_decorator_maps_over_claims(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    with DAG("dag", schedule=None) as dag:
        claims = sensor(stream)

        @jetstream_task(nats_conn_id=CONNECTION, retries=2)
        def work(claim: HeldClaim, factor: int) -> int:
            return claim.count * factor

        work.partial(factor=3).expand(claim=claims.output)
    assert dag.get_task("work").upstream_task_ids == {"claims"}
    mapped: Any = dag.get_task("work")
    unmapped = mapped.unmap({"op_kwargs": {"claim": value, "factor": 3}})
    assert execute(unmapped, try_number=1) == 30
    again = mapped.unmap({"op_kwargs": {"claim": value, "factor": 2}})
    assert execute(again, try_number=2) == 30  # settled: the recorded value
