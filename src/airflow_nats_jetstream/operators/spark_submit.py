# SPDX-License-Identifier: Apache-2.0
"""The operator that processes a claim with a job on a Spark cluster, while the task occupies no worker."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar

from airflow.sdk import BaseHook, BaseOperator

from airflow_nats_jetstream.compat import AirflowTaskTimeout, forgotten, task_state
from airflow_nats_jetstream.errors import SparkJobFailed, reported
from airflow_nats_jetstream.held.one_claim import one_claim
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink, SparkMasterLink
from airflow_nats_jetstream.operators import ending, tries
from airflow_nats_jetstream.operators.claim_task import ClaimTask
from airflow_nats_jetstream.signals import lineage
from airflow_nats_jetstream.spark.application import report_driver
from airflow_nats_jetstream.spark.master import FINISHED, GOING, SparkMaster, Submission
from airflow_nats_jetstream.template import absent, check_mapping, claimed, known_duration, templated
from airflow_nats_jetstream.tracebacks import Brief
from airflow_nats_jetstream.triggers import JetStreamSparkSubmitTrigger
from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.errors import FOREIGN, AlreadyDone, ClaimInvalid, HoldLost, OtherWork, Superseded
from pyspark_jetstream.held_claim import HeldClaim

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

OnSettled = Literal["return", "fail"]
Result = TypeVar("Result")
POLL_INTERVAL = timedelta(seconds=5)
_KEY = "jetstream_spark_job"  # must not change, because Airflow's database stores it
_FORGOTTEN = timedelta(days=7)  # how long a job is remembered after the longest hold; by then its claim has ended
_TRIGGER_SLACK = timedelta(minutes=10)  # so that the trigger ends the wait first, as long as a triggerer runs


@dataclass(frozen=True)
class Job:
    """A job as the task state store remembers it.

    claim:       the id of its claim.
    attempt:     the name of the attempt, under which the job writes its output.
    try_number:  the try of the task that submitted it.
    max_tries:   the task instance's ``max_tries`` at that time, which a clear raises.
    since:       when it was submitted, in seconds since 1970.
    driver:      the id of its driver; None until the master's answer has arrived.
    """

    claim: str
    attempt: str
    try_number: int
    max_tries: int
    since: float
    driver: str | None = None


_LONG = Job("", f"{'0' * 32}-1000-00000000", 1, 0, 0.0, f"driver-{'0' * 64}")  # the longest possible names


class JetStreamSparkSubmitOperator(ClaimTask, BaseOperator):
    """Submit a Python program to a Spark standalone cluster, and settle the claim when its job has finished.

    The program and its driver run on the cluster. Meanwhile the task is deferred: a trigger holds the claim and watches
    the job. The program receives two more arguments: ``--claim``, the JSON for the option ``claim`` of
    ``spark.read.format("jetstream")``, and ``--attempt``, a name that no other job has, under which the program writes
    its output.

    application:           the program: an absolute path, or an address, at which every worker of the cluster finds it.
                           (templated)
    claim:                 the claim as the pull sensor returned it; map over it with ``expand``. (templated)
    application_args:      the program's arguments before ``--claim`` and ``--attempt``. Default: none. (templated)
    conf:                  Spark properties. Default None. (templated)
    env_vars:              environment variables of the driver, in addition to those of its worker. Default None.
                           (templated)
    py_files:              additional Python files for the program, separated by commas. Default None. (templated)
    value:                 a value to record with the settlement. Together with attempt and driver, which are also
                           recorded, it is JSON of at most 8 KiB. Default None. (templated)
    conn_id:               the id of the Airflow connection to the Spark standalone master, which needs
                           ``spark.master.rest.enabled``. Default ``spark_default``. (templated)
    nats_conn_id:          the id of the Airflow connection to NATS. Default ``nats_default``. (templated)
    on_settled:            what to do with a claim that is already settled: ``"return"`` the recorded value (default),
                           or ``"fail"`` without retry. (templated)
    status_poll_interval:  how often the Spark master is asked for the state of the job: a ``timedelta``, or an ISO 8601
                           string such as ``PT10S``. Default 5 s. (templated)
    longest_hold:          the longest time that the job may take: a ``timedelta``, or an ISO 8601 string such as
                           ``PT36H``. A job that takes longer is killed, and its messages are redelivered. Default 24
                           hours. (templated)

    Returns and records ``{"attempt": …, "driver": …}``, and ``"value"`` if one is given.

    The job and the claim end according to the outcome:

    * The job finishes: the claim is settled.
    * The job fails, is killed, is lost or exceeds ``execution_timeout``, and Airflow retries the task: the claim is
      released, and its messages wait for the retry delay and 5 minutes more.
    * One of these happens in the last try: the claim fails. Its messages are redelivered, and the failure counts
      towards the sensor's ``max_failures``.
    * The task is marked as success or failed: the job is killed, and the claim is released at once.
    * The task is cleared, or its worker is stopped: the job is killed, and the next try submits another job.
    * The triggerer dies: the job keeps running, and another triggerer takes over the claim and watches the job.
    * The worker dies, or another error occurs: the job keeps running, and the retry watches it.
    * The claim is superseded, or another attempt holds it: the job is killed, and the task fails without retry.

    A retry finds the job in the task state store. If the worker died after it submitted the job and before it received
    the driver's id, the retry looks for the job by its name on the web page of the master (``webui`` in the
    connection's extra). If it does not find the job, it submits another job, and only the output of the new job counts.

    The master never receives credentials, because the workers have them (docs/how-to/spark-cluster.md).

    Raises:
        InvalidValue: an invalid parameter. Raised when the DAG is parsed, unless the value is templated.
        SparkJobFailed: the job did not succeed. The error names the driver and its state.
        SparkMasterUnavailable, SparkMasterRefused: the job could not be submitted.
        AirflowFailException: the messages now belong to another run, or the hold was lost.
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
        """Continue after the trigger's ``event``: the ``job`` has ended, or the trigger has stopped waiting for it."""
        self._ti = context["ti"]
        self._check_types()
        return self._outcome(lambda: self._end(context, event, Job(**job)))

    def on_kill(self) -> None:
        """Kill the job that this try submitted or watches, and release the claim if it is held."""
        super().on_kill()
        if self._driver is not None:
            self.log.warning("the task is being killed: killing Spark driver %s", self._driver)
            self._kill(self._driver)

    def _begin(self, context: Context) -> Any:
        """Submit the job, unless the claim is settled already or belongs to another attempt."""
        from jetstream_handoff.ledger.record import check_value

        store: Any = task_state(context)
        claim = one_claim(self.claim, JetStreamHook(self.nats_conn_id).run).to_json()
        self._submission(claim)
        check_value(self._recorded(_LONG))
        try:
            with self._holding() as held:
                held.release(HAND_OFF_TIMEOUT)  # a lease until the trigger holds the claim, even if this process dies
        except (AlreadyDone, ClaimInvalid, OtherWork, Superseded):
            if (kept := store.get(_KEY)) is not None:
                self._kill(Job(**kept).driver)  # the output of this job would not count
            raise
        try:
            if store.get(_KEY) is None and (why := forgotten(store, context)):
                self.log.warning("%s. If its Spark job still runs, the output of that job does not count", why)
            job, state = self._job(store, claim)
        except Exception as error:
            self._give_back(error)
            raise
        return self._settle(job, context) if state == FINISHED else self._watch(claim, job)

    def _watch(self, claim: dict[str, Any], job: Job) -> NoReturn:
        report_driver(str(job.driver), self._master.webui)
        seconds = min(self.longest_hold, self.execution_timeout or self.longest_hold).total_seconds()
        end, every = time.time() + seconds, self.status_poll_interval.total_seconds()
        trigger = JetStreamSparkSubmitTrigger(self.nats_conn_id, claim, end, self.conn_id, str(job.driver), every)
        late = timedelta(seconds=seconds) + _TRIGGER_SLACK
        self.defer(trigger=trigger, method_name="resume", kwargs={"job": asdict(job)}, timeout=late)

    def _end(self, context: Context, event: dict[str, Any], job: Job) -> Any:
        status = event["status"]
        if status == "ended" and event["state"] == FINISHED:
            return self._settle(job, context)
        if status == "superseded":
            raise Superseded(event["error"])
        if status == "ended" and job.try_number != self._ti.try_number:
            self.log.warning("Spark driver %s of an earlier try is %s", job.driver, event["state"])
            return self._begin(context)  # continue as if this try had found the job in that state
        error: BaseException
        if status == "ended":
            error = SparkJobFailed(str(job.driver), event["state"])
        elif status == "error":
            error = reported(event)
        elif status != "timeout":
            with self._holding():  # usually raises the error that names the attempt that ended the claim
                raise HoldLost(
                    f"claim {job.claim} was settled, or has failed, while its Spark job ran, so the job was killed"
                )
        elif self.execution_timeout and self.execution_timeout <= self.longest_hold:
            limit = f"the task's execution_timeout of {self.execution_timeout}"
            error = AirflowTaskTimeout(f"the Spark job took longer than {limit} and was killed")
        else:
            with self._holding() as held:
                held.release()
            limit = f"the task's longest_hold of {self.longest_hold}"
            raise HoldLost(
                f"the Spark job took longer than {limit} and was killed; the claim's messages are redelivered"
            )
        if status == "error" and tries.is_last(self._ti):
            self._kill(job.driver)  # otherwise the job would keep running unwatched
        self._give_back(error)
        raise error

    def _job(self, store: Any, claim: dict[str, Any]) -> tuple[Job, str]:
        """Return the job of an earlier try that is running or has finished, or a new job; and the job's state."""
        from jetstream_handoff.claim import new_token

        master = self._master
        kept = store.get(_KEY)
        if kept is not None and (earlier := self._earlier(master, Job(**kept), claim["id"])) is not None:
            self._remember(store, earlier[0])
            return earlier
        attempt = f"{claim['id']}-{new_token(self._ti.try_number)}"
        submission = self._submission(claim, attempt)
        job = Job(claim["id"], attempt, self._ti.try_number, self._ti.max_tries, time.time())
        self._remember(store, job)  # before it is submitted, so that a retry knows that the job may exist
        self._driver = _run(lambda: master.submit(submission, self._name_of(job)))
        job = replace(job, driver=self._driver)
        self._remember(store, job)
        self.log.info("Spark driver %s works on claim %s as attempt %s", job.driver, job.claim, attempt)
        return job, GOING[0]

    def _remember(self, store: Any, job: Job) -> None:
        store.set(_KEY, asdict(job), retention=self.longest_hold + _FORGOTTEN)

    def _earlier(self, master: SparkMaster, job: Job, claim_id: str) -> tuple[Job, str] | None:
        if job.driver is None:
            job = replace(job, driver=_run(lambda: master.find(self._name_of(job), job.since)))
        if job.driver is None:
            said = "an earlier try may have submitted a Spark job for attempt %s; the output of that job does not count"
            self.log.warning(said, job.attempt)
            return None
        driver = job.driver
        state = _run(lambda: master.state(driver))
        self.log.info("Spark driver %s of an earlier try is %s", driver, state)
        if job.max_tries != self._ti.max_tries or job.claim != claim_id:
            self._kill(driver)  # the task was cleared, which raises max_tries and may have brought another claim
            return None
        if state != FINISHED and state not in GOING:
            return None
        self._driver = driver
        return job, state

    def _settle(self, job: Job, context: Context) -> dict[str, Any]:
        recorded = self._recorded(job)
        with self._holding() as held:
            try:
                ending.settle(held, recorded, recorded, self, context)
            except (AlreadyDone, *FOREIGN):
                raise
            except BaseException as error:
                ending.end(held, error, self, self._ti)
                raise
        return recorded

    def _give_back(self, error: BaseException) -> None:
        """Release the claim for the retry, or fail it in the last try."""
        try:
            with self._holding() as held:
                ending.end(held, error, self, self._ti)
        except (AlreadyDone, *FOREIGN):
            self.log.error("%s", error)  # noqa: TRY400 - the error that is raised says more
            raise
        except JetStreamError as away:
            said = "claim %s could not be released (%s); its messages are redelivered when their lease ends"
            self.log.warning(said, claimed(self.claim, "id"), away)

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
        except Exception as error:  # noqa: BLE001 - such as a missing connection; the error that led here matters more
            said = "Spark driver %s could not be killed (%s) and may keep running, but its output does not count"
            self.log.warning(said, driver, error)

    def _submission(self, claim: dict[str, Any] | None = None, attempt: str = "") -> Submission:
        """Return the program to run, with its arguments. Raises InvalidValue."""
        self._check_types()
        arguments = [str(each) for each in self.application_args]
        if claim is not None:
            arguments += ["--claim", json.dumps(claim), "--attempt", attempt]
        conf, env_vars = _texts(self.conf), _texts(self.env_vars)
        py_files = None if absent(self.py_files) else self.py_files
        return Submission(str(self.application), tuple(arguments), conf, env_vars, py_files)

    def _check_types(self) -> None:
        """Check the types of all fields that are not templated. Raises InvalidValue."""
        listed = isinstance(self.application_args, Sequence) and not isinstance(self.application_args, str | bytes)
        if not (listed or templated(self.application_args)):
            raise InvalidValue(
                "application_args",
                type(self.application_args),
                "a value of this type is not a list; give a list of strings",
            )
        if not (absent(self.py_files) or isinstance(self.py_files, str) or templated(self.py_files)):
            raise InvalidValue(
                "py_files",
                type(self.py_files),
                "a value of this type is not a string; give the files as one string, separated by commas",
            )
        self.status_poll_interval = known_duration("status_poll_interval", self.status_poll_interval)
        self.longest_hold = known_duration("longest_hold", self.longest_hold)
        check_mapping("conf", self.conf, "Spark properties to their values")
        check_mapping("env_vars", self.env_vars, "variable names to strings")

    def _name_of(self, job: Job) -> str:
        """Return the name of the application on Spark's web pages, by which a retry finds it."""
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
