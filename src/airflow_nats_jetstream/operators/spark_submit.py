"""A claim processed by a job on a Spark cluster, while the task takes no worker's place."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_nats_jetstream import lineage
from airflow_nats_jetstream.errors import SparkJobFailed
from airflow_nats_jetstream.held import HeldClaim
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink, SparkMasterLink
from airflow_nats_jetstream.operators import tries
from airflow_nats_jetstream.operators.claim_task import FOREIGN, ClaimTask
from airflow_nats_jetstream.spark_master import FINISHED, GOING, SparkMaster, Submission
from airflow_nats_jetstream.template import absent, check_mapping, known_duration, templated
from airflow_nats_jetstream.tracebacks import Brief
from airflow_nats_jetstream.triggers import JetStreamSparkSubmitTrigger
from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HoldLost, Superseded

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

OnSettled = Literal["return", "fail"]
Result = TypeVar("Result")
POLL_INTERVAL = timedelta(seconds=5)
_KEY = "jetstream_spark_job"  # stored in databases: it stays
_FORGOTTEN = timedelta(days=7)  # after the longest hold: its claim is decided by then
_TRIGGER_SLACK = timedelta(minutes=10)  # the trigger's own end comes first, while there is a triggerer


@dataclass(frozen=True)
class Job:
    """What the task state store knows of the job: for which claim, under which name its output is, submitted by which
    try, of at most how many, and when (seconds since 1970), and which driver it is (None: that was not heard yet)."""

    claim: str
    attempt: str
    try_number: int
    max_tries: int
    since: float
    driver: str | None = None


_LONG = Job("", f"{'0' * 32}-1000-00000000", 1, 0, 0.0, f"driver-{'0' * 64}")  # names as long as they may get


class JetStreamSparkSubmitOperator(ClaimTask, BaseOperator):
    """Submit a Python program to a Spark standalone cluster, and settle the claim when it has finished.

    The program runs on the cluster, its driver too. Meanwhile the task is deferred: a trigger holds the claim and
    watches the job. The program gets two more arguments: ``--claim``, the JSON for the option ``claim`` of
    ``spark.read.format("jetstream")``, and ``--attempt``, under which it writes what no other job may touch.

    application:           its absolute path or address, as every worker of the cluster finds it. (templated)
    claim:                 as the pull sensor returned it; map over it. (templated)
    application_args:      its arguments, before the two. (templated)
    conf:                  Spark's properties. (templated)
    env_vars:              the driver's environment, in addition to its worker's. (templated)
    py_files:              further modules, with commas between. (templated)
    value:                 recorded together with attempt and driver: JSON, at most 8 KiB with them. (templated)
    conn_id:               the Spark connection: a standalone master with ``spark.master.rest.enabled``. (templated)
    on_settled:            what to do with a claim that is settled already: ``"return"`` the recorded value (default),
                           or ``"fail"`` without retry. (templated)
    status_poll_interval:  how often the master is asked. Default 5 s. (templated)
    longest_hold:          a job that takes longer is killed and not settled, its messages are redelivered. Default
                           24 h. Both are a ``timedelta``, or ISO 8601 such as ``PT36H``. (templated)

    Returns, and records, ``{"attempt": …, "driver": …}``, and ``"value"`` if it is given.

    =================================================== =====================================================
    the job has finished                                settled
    it failed, was killed, got lost or timed out, and   released; its messages wait for the retry + 5 min
    Airflow will retry
    the same, for the last time                         failed: the messages are delivered again, and it counts
                                                        towards the sensor's ``max_failures``
    the task was marked                                 the job is killed, the claim released at once
    the task was cleared, or its worker stopped         the job is killed, and the next try submits another
    the triggerer died                                  another one goes on
    the worker died; anything else went wrong           the job runs on, and the retry watches it again
    the claim belongs to somebody else                  the job is killed; fails without retry
    =================================================== =====================================================

    What a retry knows is in the task state store. When the worker died between submitting and hearing the driver's id,
    the job is looked for by its name on the master's page (``webui`` in the connection's extra); where it cannot be
    found, another one is submitted, and only its output counts.

    No credentials go through the master: the workers have them (docs/how-to/spark-cluster.md).

    Raises:
        SparkJobFailed: the job did not finish; names driver and state.
        SparkMasterUnavailable, SparkMasterRefused: it could not be submitted.
        AirflowFailException: the messages belong to another run now, or the hold was lost.
    """

    template_fields: Sequence[str] = (
        "application",
        "claim",
        "application_args",
        "conf",
        "env_vars",
        "py_files",
        "value",
        "on_settled",
        "status_poll_interval",
        "longest_hold",
        "conn_id",
        "nats_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"claim": "json", "conf": "json", "value": "json"}
    ui_color = "#e25a1c"
    operator_extra_links = (JetStreamLink(), SparkMasterLink())
    get_openlineage_facets_on_complete = lineage.read

    def __init__(
        self,
        *,
        application: str,
        claim: Mapping[str, Any] | XComArg,
        application_args: Sequence[Any] = (),
        conf: Mapping[str, Any] | None = None,
        env_vars: Mapping[str, str] | None = None,
        py_files: str | None = None,
        value: Any = None,
        conn_id: str = "spark_default",
        nats_conn_id: str = JetStreamHook.default_conn_name,
        on_settled: OnSettled | str = "return",
        status_poll_interval: timedelta | str = POLL_INTERVAL,
        longest_hold: timedelta | str = LONGEST_HOLD,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application = application
        self.claim: Any = claim
        self.application_args = application_args
        self.conf = conf or {}
        self.env_vars = env_vars or {}
        self.py_files = py_files
        self.value = value
        self.conn_id = conn_id
        self.nats_conn_id = nats_conn_id
        self.on_settled = on_settled
        self.status_poll_interval: Any = status_poll_interval
        self.longest_hold: Any = longest_hold
        self._driver: str | None = None
        self._check_types()
        if not templated([application, application_args, self.conf, self.env_vars, py_files]):
            self._submission()
        if not templated(on_settled):
            self._check_on_settled()

    def execute(self, context: Context) -> Any:
        self._check_on_settled()
        self._ti: Any = context["ti"]
        return self._outcome(lambda: self._begin(context))

    def resume(self, context: Context, event: dict[str, Any], job: dict[str, Any]) -> Any:
        """The trigger's event: how the job ended, or why it is not waited for any longer."""
        self._ti = context["ti"]
        self._check_types()
        return self._outcome(lambda: self._end(context, event, Job(**job)))

    def on_kill(self) -> None:
        """Have the job killed that this try submitted or watched again, and let the claim go if it is held."""
        super().on_kill()
        if self._driver is not None:
            self.log.warning("killed, and so is Spark driver %s", self._driver)
            self._kill(self._driver)

    def _begin(self, context: Context) -> Any:
        """Nothing is submitted for a claim that is settled or somebody else's."""
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.record import check_value

        store: Any = context["task_state_store"]
        claim = Claim.from_json(self.claim).to_json()
        self._submission(claim)
        check_value(self._recorded(_LONG))
        try:
            with self._holding() as held:
                held.release(HAND_OFF_TIMEOUT)  # a lease: nobody holds them until the trigger does, nor if this dies
        except (AlreadyDone, ClaimInvalid, Superseded):
            if (kept := store.get(_KEY)) is not None:
                self._kill(Job(**kept).driver)  # for nothing, if it still runs
            raise
        try:
            job, state = self._job(store, claim)
        except Exception as error:
            self._give_back(error)
            raise
        return self._settle(job) if state == FINISHED else self._watch(claim, job)

    def _watch(self, claim: dict[str, Any], job: Job) -> NoReturn:
        seconds = min(self.longest_hold, self.execution_timeout or self.longest_hold).total_seconds()
        end, every = time.time() + seconds, self.status_poll_interval.total_seconds()
        trigger = JetStreamSparkSubmitTrigger(self.nats_conn_id, claim, end, self.conn_id, str(job.driver), every)
        late = timedelta(seconds=seconds) + _TRIGGER_SLACK
        self.defer(trigger=trigger, method_name="resume", kwargs={"job": asdict(job)}, timeout=late)

    def _end(self, context: Context, event: dict[str, Any], job: Job) -> Any:
        status = event["status"]
        if status == "ended" and event["state"] == FINISHED:
            return self._settle(job)
        if status == "superseded":
            raise Superseded(event["error"])
        if status == "ended" and job.try_number != self._ti.try_number:
            self.log.warning("Spark driver %s of an earlier try is %s", job.driver, event["state"])
            return self._begin(context)  # as if it had been found so
        error: BaseException
        if status == "ended":
            error = SparkJobFailed(str(job.driver), event["state"])
        elif status == "error":
            error = JetStreamError(event["error"])
        elif status != "timeout":
            with self._holding():  # it says who decided
                raise HoldLost(f"claim {job.claim} was decided while its job ran; the job is killed")
        elif self.execution_timeout and self.execution_timeout <= self.longest_hold:
            error = AirflowTaskTimeout(f"the job took longer than {self.execution_timeout}, and is killed")
        else:
            with self._holding() as held:
                held.release()
            raise HoldLost(f"the job took longer than {self.longest_hold}, and is killed; its messages are redelivered")
        if status == "error" and tries.is_last(self._ti):
            self._kill(job.driver)  # it runs on, and nobody will watch it again
        self._give_back(error)
        raise error

    def _job(self, store: Any, claim: dict[str, Any]) -> tuple[Job, str]:
        """The job of an earlier try that runs or has finished, or else a new one; and its state."""
        from jetstream_handoff.claim import new_token

        master = self._master
        kept = store.get(_KEY)
        if kept is not None and (earlier := self._earlier(master, Job(**kept), claim["id"])) is not None:
            self._remember(store, earlier[0])
            return earlier
        attempt = f"{claim['id']}-{new_token(self._ti.try_number)}"
        submission = self._submission(claim, attempt)
        job = Job(claim["id"], attempt, self._ti.try_number, self._ti.max_tries, time.time())
        self._remember(store, job)  # before it is submitted: a retry must know what may be there
        self._driver = _run(lambda: master.submit(submission, self._name_of(job)))
        job = replace(job, driver=self._driver)
        self._remember(store, job)
        self.log.info("claim %s: Spark driver %s works on it as attempt %s", job.claim, job.driver, attempt)
        return job, GOING[0]

    def _remember(self, store: Any, job: Job) -> None:
        store.set(_KEY, asdict(job), retention=self.longest_hold + _FORGOTTEN)

    def _earlier(self, master: SparkMaster, job: Job, claim_id: str) -> tuple[Job, str] | None:
        if job.driver is None:
            job = replace(job, driver=_run(lambda: master.find(self._name_of(job), job.since)))
        if job.driver is None:
            self.log.warning("attempt %s may have been submitted: if it was, its output does not count", job.attempt)
            return None
        driver = job.driver
        state = _run(lambda: master.state(driver))
        self.log.info("Spark driver %s of an earlier try is %s", driver, state)
        if job.max_tries != self._ti.max_tries or job.claim != claim_id:
            self._kill(driver)  # the task was cleared, which gives it more tries; and perhaps another claim
            return None
        if state != FINISHED and state not in GOING:
            return None
        self._driver = driver
        return job, state

    def _settle(self, job: Job) -> dict[str, Any]:
        recorded = self._recorded(job)
        with self._holding() as held:
            held.settle(recorded)
        return recorded

    def _give_back(self, error: BaseException) -> None:
        """As a failed body does: for the retry, or for good."""
        try:
            with self._holding() as held:
                tries.give_back(held, error, self, self._ti)
        except (AlreadyDone, *FOREIGN):
            self.log.error("%s", error)  # noqa: TRY400 - what is raised says more
            raise
        except JetStreamError as away:
            self.log.warning("the claim's messages are redelivered when their lease ends: %s", away)

    @contextmanager
    def _holding(self) -> Iterator[HeldClaim]:
        with JetStreamHook(self.nats_conn_id).holding(self.claim, try_number=self._ti.try_number) as held:
            self._held = held
            yield held

    @property
    def _master(self) -> SparkMaster:
        return SparkMaster.of(BaseHook.get_connection(self.conn_id))

    def _kill(self, driver: str | None) -> None:
        if driver is None:
            return
        try:
            _run(lambda: self._master.kill(driver))
        except Exception as error:  # noqa: BLE001 - a missing connection, for one; what led here matters more
            self.log.warning("Spark driver %s may run on, for nothing: %s", driver, error)

    def _submission(self, claim: dict[str, Any] | None = None, attempt: str = "") -> Submission:
        """What is to run. Raises InvalidValue."""
        self._check_types()
        arguments = [str(each) for each in self.application_args]
        if claim is not None:
            arguments += ["--claim", json.dumps(claim), "--attempt", attempt]
        conf, env_vars = _texts(self.conf), _texts(self.env_vars)
        py_files = None if absent(self.py_files) else self.py_files
        return Submission(str(self.application), tuple(arguments), conf, env_vars, py_files)

    def _check_types(self) -> None:
        """Raises InvalidValue, also for one field while others are templated."""
        listed = isinstance(self.application_args, Sequence) and not isinstance(self.application_args, str | bytes)
        if not (listed or templated(self.application_args)):
            raise InvalidValue("application_args", type(self.application_args).__name__, "give a list")
        if not (absent(self.py_files) or isinstance(self.py_files, str) or templated(self.py_files)):
            raise InvalidValue("py_files", type(self.py_files).__name__, "give a text, with commas between the files")
        self.status_poll_interval = known_duration("status_poll_interval", self.status_poll_interval)
        self.longest_hold = known_duration("longest_hold", self.longest_hold)
        check_mapping("conf", self.conf, "Spark's properties to their values")
        check_mapping("env_vars", self.env_vars, "names of variables to texts")

    def _name_of(self, job: Job) -> str:
        """The application's name on Spark's pages, by which a retry finds it."""
        return f"{self.task_id} {job.attempt}"

    def _recorded(self, job: Job) -> dict[str, Any]:
        value = {} if self.value is None else {"value": self.value}
        return {"attempt": job.attempt, "driver": job.driver, **value}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in values.items()}


def _run(function: Callable[[], Awaitable[Result]]) -> Result:
    from anyio.from_thread import start_blocking_portal

    with Brief(), start_blocking_portal() as portal:
        return portal.call(function)
