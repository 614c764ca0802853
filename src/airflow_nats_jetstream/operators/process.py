"""Processing a claim: hold it, run the body, settle it. ``@task.jetstream`` is the usual way to write it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_nats_jetstream import lineage
from airflow_nats_jetstream.held import HeldClaim
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators import tries
from airflow_nats_jetstream.operators.claim_task import FOREIGN, ClaimTask
from airflow_nats_jetstream.template import duration, known_duration, templated
from airflow_nats_jetstream.tracebacks import brief
from jetstream_client.errors import InvalidValue, MessagesMissing
from jetstream_client.names import check_stream_name
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.errors import AlreadyDone, HoldLost

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

OnSettled = Literal["return", "reprocess", "fail"]


class JetStreamProcessOperator(ClaimTask, PythonOperator):
    """Run a callable on a held claim, and settle the claim when it returns.

    python_callable:  has a parameter ``claim``, which arrives as :class:`~airflow_nats_jetstream.held.HeldClaim`.
                      What it returns is the XCom and is recorded with the settlement: JSON, at most 8 KiB.
    op_kwargs:        give ``claim`` there, as the sensor returned it, or map over it. (templated)
    on_settled:       what to do with a claim that is settled already, in a retry or a cleared task. (templated)
                      ``"return"``: skip the body, return the recorded value (default). ``"fail"``: fail without retry.
                      ``"reprocess"``: run the body again on the same messages, as a new attempt whose output replaces
                      the older one when it succeeds; fails without retry when the stream lacks some of them.
    longest_hold:     a hold that lasts longer is lost: the work is stopped and not settled, its messages are
                      redelivered. A ``timedelta``, or ISO 8601 (``PT36H``). Default 24 h. (templated)
    dead_letters:     the stream that takes what the body rejects with ``claim.reject``, created if it is missing.
                      Default ``DEAD_<stream>``. (templated)

    ==================================================== ====================================================
    the body returned                                    settled with its value
    it raised or timed out, and Airflow will retry       released; its messages wait for the retry + 5 min
    it raised for the last time, or AirflowFailException failed: the messages are delivered again, and it counts
                                                         towards the sensor's ``max_failures``
    it raised AirflowSkipException                       failed, but does not count
    killed                                               released at once; settling is refused
    the claim belongs to somebody else                   fails without retry
    ==================================================== ====================================================
    """

    template_fields: Sequence[str] = (
        *PythonOperator.template_fields,
        "on_settled",
        "longest_hold",
        "dead_letters",
        "nats_conn_id",
    )
    on_settled_choices = get_args(OnSettled)
    ui_color = "#34a574"
    get_openlineage_facets_on_complete = lineage.read

    def __init__(
        self,
        *,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        on_settled: OnSettled | str = "return",
        longest_hold: timedelta | str = LONGEST_HOLD,
        dead_letters: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.nats_conn_id = nats_conn_id
        self.on_settled = on_settled
        self.longest_hold = known_duration("longest_hold", longest_hold)
        self.dead_letters = dead_letters
        self.claim: Mapping[str, Any] = {}  # as the sensor returned it, once the task knows it
        if not templated(on_settled):
            self._check_on_settled()
        if dead_letters is not None and not templated([dead_letters]):
            check_stream_name(dead_letters, "dead_letters")
        check_function(self.python_callable)

    def execute(self, context: Context) -> Any:
        self._check_on_settled()
        self._ti = context["ti"]
        return super().execute(context)

    def execute_callable(self) -> Any:
        return self._outcome(self._hold)

    def _hold(self) -> Any:
        arguments = inspect.signature(self.python_callable).bind_partial(*self.op_args)
        named = "claim" in self.op_kwargs
        hook = JetStreamHook(self.nats_conn_id)
        claim: Any = self.op_kwargs["claim"] if named else arguments.arguments.get("claim")
        self.claim = claim if isinstance(claim, Mapping) else {}
        try:
            with hook.holding(
                claim,
                try_number=self._ti.try_number,
                longest_hold=duration("longest_hold", self.longest_hold),
                dead_letters=self.dead_letters or None,
                reprocess=self.on_settled == "reprocess",
            ) as held:
                self._held = held
                if named:
                    self.op_kwargs = {**self.op_kwargs, "claim": held}
                else:
                    arguments.arguments["claim"] = held
                    self.op_args = list(arguments.args)
                return self._work(held)
        except MessagesMissing as missing:
            if self._held is not None:
                raise  # while the body read them
            raise AirflowFailException(f"claim cannot be processed again: {missing}") from brief(missing)

    def _work(self, held: HeldClaim) -> Any:
        try:
            value = super().execute_callable()
            held.settle(value)
        except (AlreadyDone, *FOREIGN):
            raise
        except (AirflowFailException, AirflowSkipException) as error:
            if not held.killed:
                held.fail(tries.reason(error, self._ti), blame=isinstance(error, AirflowFailException))
            raise
        except AirflowTaskTimeout as error:
            if held.ended:
                self.log.info("the time-out came when the work was done and being settled: it is")
                return value
            if held.killed or held.lost:
                raise
            tries.give_back(held, error, self, self._ti)
            raise
        except Exception as error:
            if held.lost:
                raise HoldLost(f"claim {held.id} is not held any more: {held.lost}") from error
            if held.killed:
                raise
            tries.give_back(held, error, self, self._ti)
            raise
        return value


class _JetStreamDecoratedOperator(DecoratedOperator, JetStreamProcessOperator):
    """The operator behind ``@task.jetstream``."""

    template_fields: Sequence[str] = JetStreamProcessOperator.template_fields
    template_fields_renderers = PythonOperator.template_fields_renderers
    custom_operator_name: str = "@task.jetstream"

    def __init__(self, **kwargs: Any) -> None:
        upstream = {name: kwargs[name] for name in ("python_callable", "op_args", "op_kwargs")}
        super().__init__(kwargs_to_upstream=upstream, **kwargs)


def jetstream_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """``@task.jetstream``: the function's argument ``claim`` arrives held and is settled when the function returns."""
    decorate = task_decorator_factory(
        multiple_outputs=multiple_outputs, decorated_operator_class=_JetStreamDecoratedOperator, **kwargs
    )

    def checked(function: Callable[..., Any]) -> Any:
        check_function(function)  # a mapped task's operator is made when it runs, and would say so only then
        return decorate(function)

    return cast("TaskDecorator", checked if python_callable is None else checked(python_callable))


def check_function(function: Callable[..., Any]) -> None:
    """What processes a claim. Raises InvalidValue: no parameter takes the claim, or it is asynchronous."""
    name = getattr(function, "__name__", None) or repr(function)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise InvalidValue("python_callable", name, "give a function with a parameter named claim") from None
    takes = parameters.get("claim")
    if takes is None or takes.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise InvalidValue("python_callable", name, "it needs a parameter named claim")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "func", None)):
        raise InvalidValue("python_callable", name, "it must not be async yet")
