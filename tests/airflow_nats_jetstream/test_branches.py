"""A branch chooses which of several tasks ends a claim. A settling task behind the other way leaves it to that task."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task_group

from airflow_nats_jetstream.compat import AirflowFailException, AirflowSkipException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import handed_on
from tests.airflow_nats_jetstream.one_run import OneRun
from tests.airflow_nats_jetstream.steps import CONNECTION, execute, info, publish, record, sensor

LEASE = {"ack_wait": timedelta(seconds=5)}


def settling(task_id: str, claim: Any, **changes: Any) -> JetStreamSettleOperator:
    return JetStreamSettleOperator(task_id=task_id, claim=claim, nats_conn_id=CONNECTION, **changes)


class Branched:
    """A DAG in which `settle` settles a claim after `load`, or `finish` after `audit`; and a claim of its sensor."""

    def __init__(self, hook: JetStreamHook, stream: str, run: OneRun) -> None:
        self.hook, self.stream, self.run = hook, stream, run
        publish(hook, stream, 10)
        (self.claim,) = execute(self.sensor())
        run.push(handed_on.KEY, {"claims": [self.claim["id"]], "clears": 0})
        self.dag = self.built()

    def sensor(self) -> Any:
        return sensor(self.stream, consumer_config=LEASE, timeout=60)

    def built(self, settle: dict[str, Any] | None = None, finish: dict[str, Any] | None = None) -> DAG:
        with DAG("dag", schedule=None) as dag:
            claims, choose = self.sensor(), EmptyOperator(task_id="choose")
            claims >> choose
            choose >> EmptyOperator(task_id="load") >> settling("settle", claims.output, **settle or {})
            choose >> EmptyOperator(task_id="audit") >> settling("finish", claims.output, **finish or {})
        return dag

    def ends(self, task_id: str, **states: str | None) -> Any:
        """Run a settling task, as Airflow has rendered it, with these states of the others."""
        self.run.states = {"claims": "success", "choose": "success", **states}
        given: Any = self.dag.get_task(task_id)
        task = given.prepare_for_execution()
        task.claim = self.claim
        return execute(task)

    @property
    def is_open(self) -> bool:
        """Whether the claim still waits for a task: nobody has acknowledged, failed or released it."""
        found = record(self.hook, self.stream)
        entry = found and found.open.get(self.claim["id"])
        return bool(entry and not entry.is_released and not info(self.hook, self.stream).floor)

    @property
    def is_settled(self) -> bool:
        return info(self.hook, self.stream).floor == 10


@pytest.fixture
def branched(hook: JetStreamHook, stream: str, run: OneRun) -> Branched:
    return Branched(hook, stream, run)


@pytest.mark.parametrize("load", [None, "queued", "running", "up_for_retry"])
@pytest.mark.parametrize("skipped", [False, True])
def test_the_claim_is_left_to_the_chosen_way(branched: Branched, load: str | None, skipped: bool) -> None:
    """It would be released, or settled as skipped, while the chosen tasks work on it."""
    branched.dag = branched.built(finish={"settle_skipped": skipped})
    with pytest.raises(AirflowSkipException, match="settle decides about the claim"):
        branched.ends("finish", audit="skipped", load=load, settle=None)
    assert branched.is_open
    branched.ends("settle", audit="skipped", load="success", finish="skipped")
    assert branched.is_settled
    with pytest.raises(AirflowSkipException):
        branched.ends("finish", audit="skipped", load="success", settle="success")


def test_failed_work_of_the_chosen_way_fails_the_claim(branched: Branched) -> None:
    with pytest.raises(AirflowSkipException):
        branched.ends("finish", audit="skipped", load="failed", settle=None)
    with pytest.raises(AirflowFailException, match="load is failed"):
        branched.ends("settle", audit="skipped", load="failed", finish="skipped")
    assert not branched.is_open
    assert not branched.is_settled


def test_the_last_one_gives_the_claim_back_if_all_work_was_skipped(branched: Branched) -> None:
    with pytest.raises(AirflowSkipException):
        branched.ends("finish", audit="skipped", load="running", settle=None)
    with pytest.raises(AirflowFailException, match="load is skipped"):
        branched.ends("settle", audit="skipped", load="skipped", finish="skipped")
    assert not branched.is_open
    assert not branched.is_settled


@pytest.mark.parametrize("skipped", [False, True])
def test_a_way_that_may_not_end_the_claim(branched: Branched, skipped: bool) -> None:
    """Airflow skips a task whose rule is all_success if any task upstream of it is skipped later."""
    branched.dag = branched.built({"trigger_rule": "all_success"}, {"settle_skipped": skipped})
    with pytest.raises(AirflowFailException, match="settle may also settle the claim"):
        branched.ends("finish", audit="skipped", load="running", settle=None)
    assert not branched.is_open
    assert not branched.is_settled


def test_a_way_whose_settling_task_was_skipped_ends_no_claim(branched: Branched) -> None:
    with pytest.raises(AirflowFailException, match="audit is skipped"):
        branched.ends("finish", audit="skipped", load="success", settle="skipped")
    assert not branched.is_open


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        *((each, AirflowSkipException) for each in ("scheduled", "running", "success", "failed", "deferred")),
        *((each, AirflowFailException) for each in (None, "skipped", "upstream_failed")),
    ],
)
def test_a_way_with_a_task_that_holds_the_claim(branched: Branched, state: str | None, ends: type[Exception]) -> None:
    def work(claim: Any) -> None: ...

    with DAG("dag", schedule=None) as branched.dag:
        claims, choose = branched.sensor(), EmptyOperator(task_id="choose")
        held = JetStreamProcessOperator(task_id="work", python_callable=work, op_kwargs={"claim": claims.output})
        claims >> choose >> [EmptyOperator(task_id="audit"), held]
        branched.dag.get_task("audit") >> settling("finish", claims.output)
    with pytest.raises(ends):
        branched.ends("finish", audit="skipped", work=state)
    assert branched.is_open is (ends is AirflowSkipException)


@pytest.mark.parametrize("same", [True, False])
def test_only_a_task_with_the_same_claim_ends_it(branched: Branched, same: bool) -> None:
    """In mapped groups: an instance of another group has the claim with another map index."""
    with DAG("dag", schedule=None) as branched.dag:
        claims = branched.sensor()

        @task_group
        def each(claim: Any) -> None:
            EmptyOperator(task_id="load") >> settling("settle", claim)
            if same:
                EmptyOperator(task_id="audit") >> settling("finish", claim)

        @task_group
        def rest(claim: Any) -> None:
            EmptyOperator(task_id="audit") >> settling("finish", claim)

        each.expand(claim=claims.output)
        if not same:
            rest.expand(claim=claims.output)
    name = "each" if same else "rest"
    states = {f"{name}.audit": "skipped", "each.load": "running", "each.settle": None}
    with pytest.raises(AirflowSkipException if same else AirflowFailException):
        branched.ends(f"{name}.finish", **states)
    assert branched.is_open is same
