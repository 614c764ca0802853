# SPDX-License-Identifier: Apache-2.0
"""Hold a claim around any operator: ``holding(Operator)``, or ``class Job(JetStreamHeld, Operator)``."""

from __future__ import annotations

import json
import re
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what is imported next

# isort: split

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow_nats_jetstream.held.known_claim import KnownClaim, token_in
from airflow_nats_jetstream.held.one_claim import one_claim
from airflow_nats_jetstream.held.refusals import (
    check_classes,
    check_parameters,
    check_rendered,
    not_reattaching,
    parameters_of,
)
from airflow_nats_jetstream.held.work import Work, of_work
from airflow_nats_jetstream.held_trigger import JetStreamHeldTrigger, reason_of_loss
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators import ending, tries
from airflow_nats_jetstream.operators.claim_task import check_on_settled, outcome
from airflow_nats_jetstream.signals import lineage
from airflow_nats_jetstream.template import duration, known_duration, templated, yes_or_no
from jetstream_client.errors import (
    ConnectionDenied,
    ConnectionFailed,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    JetStreamNotEnabledForAccount,
    RequestTimeout,
)
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.errors import FOREIGN, AlreadyDone, ClaimInvalid, HoldLost, LedgerUnavailable

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context, XComArg

    from jetstream_handoff.claim import Claim
    from pyspark_jetstream.held_claim import HeldClaim

OnSettled = Literal["return", "fail"]
_CHOICES = ("return", "fail")
_PATIENCE = timedelta(minutes=10)
"""How long a task that resumes waits for NATS. A job that has finished would otherwise run again after a short outage.
The lease of the claim is longer."""
_RETRY_DELAY = 1.0  # seconds between two tries to reach NATS
_TOO_FAST = 1.0  # seconds in which no job of an engine succeeds
_FAST = re.compile(r"^airflow_nats_jetstream\b|\.providers\.(standard|common\.sql)\.")
"""Modules whose operators do their work themselves, and may do so at once."""
_JSON = re.compile(r"\s*\{\{-?\s*claim\.json\s*-?\}\}\s*")
_AFTER = ("on_settled", "longest_hold", "nats_conn_id")
"""The template fields after those of the operator. The field ``claim`` comes first, so that all others can use it."""


class JetStreamHeld(BaseOperator):
    """Mixin that holds a claim while an operator works, and settles it when the operator has succeeded.

    Put it in front of the operator: ``class Job(JetStreamHeld, SparkKubernetesOperator)``. :func:`holding` makes such a
    class in one word. The operator may run in a worker, defer any number of times, or be a sensor in any mode, and may
    be mapped.

    claim:              the claim as the pull sensor returned it; map over it with ``expand``. (templated)
    on_settled:         what to do with a claim that is already settled: ``"return"`` the recorded value (default), or
                        ``"fail"`` without retry. (templated)
    on_skip:            what to do with the claim if the operator is skipped: ``"release"`` it, so that its messages are
                        redelivered to the next run (default), or ``"settle"`` it, because there is nothing to do for
                        them.
    longest_hold:       the longest time from the start of the try to its end: a ``timedelta``, or an ISO 8601 string
                        such as ``PT36H``. After that, the hold is lost. Default 24 hours. (templated)
    export_connection:  whether programs that the operator starts on the worker find the settings of the connection to
                        NATS, with its secrets, in their environment, as Spark in client mode needs them. Default False.
    waits:              whether you have checked that the operator returns only after its work is done. Needed for an
                        operator that is not known to wait (docs/how-to/hold-any-operator.md). Default False.
    nats_conn_id:       the id of the Airflow connection to NATS. Default ``nats_default``. (templated)

    All other parameters are the operator's. An operator that would by default continue the job of an earlier try, as
    many do with ``durable``, submits another job instead, because each try has a different ``attempt_id``. The
    operator's templates know ``claim``, with these fields:

    * ``attempt_id``: the name under which this try writes its output, and which ``hook.committed()`` lists
    * ``json``: the claim as a string, for Spark's option ``claim``
    * ``id``, ``stream``, ``consumer``, ``first`` and ``last`` (sequences), ``count``, ``bytes``

    The claim ends according to the outcome of the operator:

    * It returns, ``post_execute`` succeeds and the XComs are pushed: the claim is settled. The XCom is recorded if it
      is JSON of at most 8 KiB.
    * It defers or is rescheduled: the claim stays held. While the task is deferred, a trigger holds it.
    * It raises or times out, and Airflow retries the task: the claim is released, and its messages wait for the retry
      delay and 5 minutes more.
    * It raises in the last try, raises ``AirflowFailException``, or a sensor times out: the claim fails, and the
      failure counts towards the pull sensor's ``max_failures``.
    * It is skipped: ``on_skip`` decides.
    * It returns a generator, a coroutine or an unfinished future, or leaves a thread behind that still runs: this
      counts as an error, because its work is not done.
    * The task is killed, cleared or marked: the job is killed with the operator's own ``on_kill``, and the claim is
      released.
    * The hold is lost: the job is killed, and the task fails without retry.

    Raises:
        InvalidValue: an invalid parameter, or a way to use the operator in which its claim cannot be held
            (docs/how-to/hold-any-operator.md lists them). Raised when the DAG is parsed, unless the value is templated.
        AirflowFailException: the claim is invalid, superseded, held by another attempt, or lost.
        JetStreamError: another error of NATS or the ledger. A retry holds the claim again.
    """

    holds_claims = True

    def __init__(
        self,
        *,
        claim: Mapping[str, Any] | XComArg,
        on_settled: OnSettled | str = "return",
        on_skip: ending.OnSkip = "release",
        longest_hold: timedelta | str = LONGEST_HOLD,
        export_connection: bool = False,
        waits: bool = False,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        operators = _operators(type(self))
        if "nats_conn_id" in parameters_of(operators):
            kwargs["nats_conn_id"] = nats_conn_id
        super().__init__(**{**kwargs, **not_reattaching(operators, kwargs)})
        self.claim: Any = claim
        self._found: Claim | None = None  # as it was parsed for the templates
        self.on_settled = on_settled
        self.on_skip = on_skip
        ending.check_on_skip(on_skip)
        self.longest_hold: Any = known_duration("longest_hold", longest_hold)
        self.export_connection = yes_or_no("export_connection", export_connection)
        self.nats_conn_id = nats_conn_id
        if not templated(on_settled):
            check_on_settled(on_settled, _CHOICES)
        check_parameters(type(self), {**self._given, **kwargs}, waits=yes_or_no("waits", waits))
        self._work = Work()

    @property
    def _given(self) -> Mapping[str, Any]:
        """The parameters as they were given in the DAG."""
        return cast("Mapping[str, Any]", getattr(self, "_BaseOperator__init_kwargs", {}))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_classes(cls.__name__, _operators(cls))
        for name in ("execute", "resume_execution"):
            if any(name in each.__dict__ for each in cls.mro()[: cls.mro().index(JetStreamHeld)]):
                raise InvalidValue(
                    name,
                    cls.__name__,
                    "this class overrides the method that settles the claim, so that its code could fail afterwards; "
                    "put the code into a class without JetStreamHeld, and hold the claim around it with holding()",
                )
        ours = ("claim", *_AFTER)
        cls.template_fields = ("claim", *(each for each in cls.template_fields if each not in ours), *_AFTER)
        cls.template_fields_renderers = {**cls.template_fields_renderers, "claim": "json"}
        links = cls.operator_extra_links
        if isinstance(links, Collection) and not any(isinstance(each, JetStreamLink) for each in links):
            added: Collection[BaseOperatorLink] = (*links, JetStreamLink())
            cls.operator_extra_links = added

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Begin to map the operator, as every operator's ``partial``. Raises InvalidValue as the constructor does."""
        check_parameters(cls, kwargs, waits=yes_or_no("waits", kwargs.get("waits", False)))
        return super().partial(**kwargs)

    def render_template(
        self, content: Any, context: Context, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a value. The strings inside the claim are never rendered, because they could be taken for the names of
        files."""
        if content is self.claim:
            return self._find(context, jinja_env)
        if "claim" not in context:
            self._find(context, jinja_env)
        if isinstance(content, str) and _JSON.fullmatch(content):  # a native environment would make a mapping of it
            return cast("Any", context)["claim"].json
        return super().render_template(content, context, jinja_env, seen_oids)

    def _find(self, context: Context, jinja_env: Any) -> Any:
        """Make the claim known to templates, and return it as the sensor returned it."""
        value: Any = self.claim
        if hasattr(value, "resolve"):
            value = value.resolve(context)
        elif isinstance(value, str) and templated(value):
            value = self._render((jinja_env or self.get_template_env()).from_string(value), context)
        try:
            conn_id = super().render_template(self.nats_conn_id, context, jinja_env)  # rendered after the claim
            claim = one_claim(value, JetStreamHook(conn_id).run)
        except ClaimInvalid as invalid:
            raise AirflowFailException(str(invalid)) from None
        self._found, rendered = claim, claim.to_json()
        cast("Any", context)["claim"] = KnownClaim(claim, json.dumps(rendered), token_in(context["ti"]))
        return rendered

    def execute(self, context: Context, **kwargs: Any) -> Any:
        """Run the operator while the claim is held.

        context:  Airflow's context.
        kwargs:   the arguments of a deferral whose next method is ``execute``, such as its event.
        """
        work = partial(super().execute, context, **kwargs)
        # Some operators continue with "execute" after a deferral, or call it themselves: the claim is held already, and
        # is settled when the outermost call has returned.
        return work() if self._work.held is not None else self._while_held(context, work, resumed=False)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral, while the claim is held again."""
        if lost := reason_of_loss(next_kwargs):
            raise AirflowFailException(lost)
        resume = partial(super().resume_execution, next_method, next_kwargs, context)
        return self._while_held(context, resume, resumed=True)

    def on_kill(self) -> None:
        """Release the claim, which takes at most 3 s, and kill the job. From then on, this attempt cannot settle."""
        if self._work.held is not None:
            self.log.warning("the task is being killed: releasing claim %s", self._work.held.id)
        self._work.kill(super().on_kill)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of the operator, and the claim's stream as one more input."""
        theirs: Any = super()
        for name in ("get_openlineage_facets_on_complete", "get_openlineage_facets_on_start"):
            if (facets := getattr(theirs, name, None)) is not None:
                found = facets(task_instance) if name.endswith("complete") else facets()
                return lineage.read(self).merge(found) if found else lineage.read(self)
        return lineage.read(self)

    def _while_held(self, context: Context, work: Callable[[], Any], *, resumed: bool) -> Any:
        check_on_settled(self.on_settled, _CHOICES)
        check_rendered(self, self._given)
        self._work = Work()

        def hold() -> Any:
            with self._hold(context["ti"], resumed=resumed) as held:
                self._work.held = held
                if self._work.killed:  # while the claim was being held
                    held.kill()
                held.on_stop(partial(self._work.stop, super(JetStreamHeld, self).on_kill))
                return self._end(held, work, context, resumed=resumed)

        try:
            value = outcome(hold, self.on_settled, self.log, lambda: self._work.held)
        finally:
            self._work.held = None
        return value

    @contextmanager
    def _hold(self, ti: Any, *, resumed: bool) -> Iterator[HeldClaim]:
        """Hold the claim. A task that resumes waits for NATS, if that is necessary."""
        left = duration("longest_hold", self.longest_hold)
        if resumed and ti.start_date is not None:
            left -= datetime.now(UTC) - ti.start_date
        end = time.monotonic() + (_PATIENCE.total_seconds() if resumed else 0.0)
        with ExitStack() as stack:
            while True:
                holding = JetStreamHook(self.nats_conn_id).holding(
                    self._found or self.claim,
                    try_number=ti.try_number,
                    token=token_in(ti),
                    resume=resumed,
                    longest_hold=max(left, timedelta(seconds=1)),
                    export=self.export_connection,
                )
                try:
                    held = stack.enter_context(holding)
                    break
                except JetStreamError as away:
                    if not _may_return(away) or time.monotonic() > end:
                        raise
                    self.log.warning("NATS cannot be reached, and the task waits for it: %s", away)
                    time.sleep(_RETRY_DELAY)
            yield held

    def _end(self, held: HeldClaim, work: Callable[[], Any], context: Context, *, resumed: bool) -> Any:
        """Do the work, and end the hold according to its outcome."""
        ti: Any = context["ti"]
        begun = time.monotonic()
        value: Any = None
        try:
            value = of_work(work)
            self._settle(held, value, context, None if resumed else time.monotonic() - begun)
        except TaskDeferred as deferral:
            self._hand_over(held, HAND_OFF_TIMEOUT, ti)
            self._defer(deferral, ti)
        except AirflowRescheduleException as later:
            self._hand_over(held, tries.until(later), ti)
            raise
        except (AlreadyDone, *FOREIGN):
            raise
        except BaseException as error:
            if isinstance(error, AirflowTaskTimeout) and held.ended:
                self.log.info("the task timed out while its claim was being settled; the claim is settled")
                return value
            ending.end(held, error, self, ti)
            raise
        return value

    def _settle(self, held: HeldClaim, value: Any, context: Context, seconds: float | None) -> None:
        if seconds is not None and seconds < _TOO_FAST and not _FAST.search(type(self).__module__):
            self.log.warning(
                "%s has succeeded within %.1f s. If it only started a job, claim %s is now settled although the job "
                "has not ended: let the operator wait for its job",
                self.task_type,
                seconds,
                held.id,
            )
        recorded = ending.recordable(held, value if self.do_xcom_push else None)
        ending.settle(held, recorded, value, self, context)

    def _hand_over(self, held: HeldClaim, lease: timedelta, ti: Any) -> None:
        try:
            held.hand_over(lease)
        except HoldLost:
            self._work.stop(super().on_kill)
            raise
        except AirflowTaskTimeout:  # so the task neither defers nor is rescheduled
            held.release(None if tries.is_last(ti) else tries.lease(self, ti))  # although it may be handed over
            raise
        except JetStreamError as away:  # the trigger finds out whether the claim is still held
            self.log.warning("claim %s is handed over without a lease: %s", held.id, away)
        if self._work.killed:
            held.release()
            raise AirflowException(f"the task was killed while it handed claim {held.id} over")

    def _defer(self, deferral: TaskDeferred, ti: Any) -> NoReturn:
        """Defer with a trigger that runs the operator's trigger and keeps the claim."""
        end = (ti.start_date or datetime.now(UTC)) + duration("longest_hold", self.longest_hold)
        trigger = JetStreamHeldTrigger.around(
            deferral.trigger,
            nats_conn_id=self.nats_conn_id,
            end=end.timestamp(),
            claim=self.claim,
            token=token_in(ti),
        )
        raise TaskDeferred(
            trigger=trigger, method_name=deferral.method_name, kwargs=deferral.kwargs, timeout=deferral.timeout
        ) from None


def _may_return(away: JetStreamError) -> bool:
    """Return whether NATS or its ledger may be available again without anybody's help."""
    reason = away.__cause__ if isinstance(away, LedgerUnavailable) else away
    transient = isinstance(reason, ConnectionFailed | RequestTimeout | JetStreamNotEnabled)
    return transient and not isinstance(reason, ConnectionDenied | JetStreamNotEnabledForAccount)


def _operators(held: type) -> tuple[type, ...]:
    """The classes around which a class holds the claim."""
    return tuple(each for each in held.mro() if not issubclass(each, JetStreamHeld))


@cache
def holding(operator: type) -> Any:
    """Return the class of an operator that holds a claim while it works: ``holding(DatabricksSubmitRunOperator)``.

    The class has the name and the module of the operator, and in addition the parameters of :class:`JetStreamHeld`.

    operator:  the operator's class.

    Raises:
        InvalidValue: a claim cannot be held around this operator. The message names the alternative.
    """
    if isinstance(operator, type) and issubclass(operator, JetStreamHeld):
        return operator
    if not (isinstance(operator, type) and issubclass(operator, BaseOperator)):
        raise InvalidValue("operator", operator, "give the class of an operator, such as SparkSubmitOperator")

    def named(namespace: dict[str, Any]) -> None:
        for name in ("__module__", "__qualname__", "__doc__"):
            namespace[name] = getattr(operator, name)

    return types.new_class(operator.__name__, (JetStreamHeld, operator), {}, named)
