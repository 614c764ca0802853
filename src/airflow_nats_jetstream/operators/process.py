# SPDX-License-Identifier: Apache-2.0
"""The operator that processes a claim: hold it, call the function, settle it. ``@task.jetstream`` is its usual form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_nats_jetstream.compat import AirflowFailException, is_async_callable
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators import ending
from airflow_nats_jetstream.operators.claim_task import ClaimTask
from airflow_nats_jetstream.signals import lineage
from airflow_nats_jetstream.spark.connect import spark_connect
from airflow_nats_jetstream.template import duration, known_duration, templated
from airflow_nats_jetstream.tracebacks import brief
from jetstream_client.errors import InvalidValue, MessagesMissing
from jetstream_client.names import check_stream_name
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.rules.missing import Missing, check_missing

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

OnSettled = Literal["return", "reprocess", "fail"]


class JetStreamProcessOperator(ClaimTask, PythonOperator):
    """Hold a claim, call a function with it, and settle the claim when the function returns.

    python_callable:  the function. It needs a parameter ``claim``, which receives a
                      :class:`~pyspark_jetstream.held_claim.HeldClaim`. Its return value becomes the XCom and is
                      recorded with the settlement: JSON of at most 8 KiB.
    op_kwargs:        the keyword arguments of the function. Its argument ``claim`` is a claim as the pull sensor
                      returned it; to map over claims, use ``expand``. (templated)
    on_settled:       what to do with a claim that is already settled, in a retry or a cleared task. ``"return"``
                      (default): skip the function and return the recorded value. ``"fail"``: fail without retry.
                      ``"reprocess"``: call the function again with the same messages, as a new attempt. If this attempt
                      succeeds, its output replaces the older output. If the stream no longer contains all of the
                      messages, the task fails without retry, unless ``missing`` is ``"skip"``. (templated)
    on_skip:          what to do with the claim if the function raises ``AirflowSkipException``. ``"release"`` it
                      (default): its messages are redelivered to the next run, and if this happens repeatedly, the page
                      JetStream and the command ``doctor`` report it. ``"settle"`` it: there is nothing to do for
                      its messages.
    missing:          what reading the claim does with messages that the stream no longer contains, because they
                      expired, were replaced by newer ones on their subject, or were removed. ``"error"`` (default): it
                      raises MessagesMissing, and the task fails without retry. ``"skip"``: it reads the others; the log
                      and the claim's receipt name the missing ones, which are acknowledged with the claim.
    longest_hold:     the longest time for which the claim is held: a ``timedelta``, or an ISO 8601 string such as
                      ``PT36H``. After that, the hold is lost: the work is stopped, nothing is settled, and the messages
                      are redelivered. Default 24 hours. (templated)
    dead_letters:     the name of the stream for messages that the function rejects with ``claim.reject``. It is created
                      if it does not exist. Default None: ``DEAD_<stream>``. (templated)
    nats_conn_id:     the id of the Airflow connection. Default ``nats_default``. (templated)
    spark_conn_id:    the id of an Airflow connection to a Spark Connect server, of type ``spark_connect``. In the
                      function, ``spark_session()`` then returns a session on that server. Default None: the server that
                      ``SPARK_REMOTE`` names in the worker's environment, or else a Spark inside this task. (templated)

    The claim ends according to the outcome of the work:

    * The function returns, ``post_execute`` succeeds and the XComs are pushed: the claim is settled with the returned
      value.
    * One of these raises or times out, and Airflow retries the task: the claim is released, and its messages wait for
      the retry delay and 5 minutes more.
    * One of these raises in the last try, or raises ``AirflowFailException``: the claim fails. Its messages are
      redelivered, and the failure counts towards the sensor's ``max_failures``.
    * The function raises ``AirflowSkipException``: ``on_skip`` decides. The task is skipped.
    * The function raises ``AirflowRescheduleException``: the claim is released until 5 minutes after the task is due.
    * The function asks Airflow to continue the task elsewhere, for example with ``TaskDeferred``: the claim fails, and
      the task fails without retry.
    * The function returns a generator, a coroutine or an unfinished future, or leaves a thread behind that still runs:
      this counts as an error of the function, because its work is not done.
    * Messages of the claim no longer exist, and ``missing`` is ``"error"``: the claim fails, and the task fails
      without retry. The failure does not count towards ``max_failures``.
    * The task is killed: the claim is released at once, and settling it is refused.
    * The claim is superseded, or another attempt holds it: the task fails without retry.

    All other parameters are the parameters of Airflow's ``PythonOperator``.

    Raises:
        InvalidValue: an invalid parameter, raised when the DAG is parsed, unless the value is templated; or a return
            value that is not JSON or too large, raised before anything is settled.
        AirflowFailException: the claim is invalid, superseded, held by another attempt, or lost.
        JetStreamError: another error of NATS or the ledger. A retry holds the claim again.
    """

    template_fields: Sequence[str] = (
        *PythonOperator.template_fields,
        "on_settled",
        "longest_hold",
        "dead_letters",
        "nats_conn_id",
        "spark_conn_id",
    )
    on_settled_choices = get_args(OnSettled)
    ui_color = "#34a574"
    get_openlineage_facets_on_complete = lineage.read

    def __init__(
        self,
        *,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        on_settled: OnSettled | str = "return",
        on_skip: ending.OnSkip = "release",
        missing: Missing = "error",
        longest_hold: timedelta | str = LONGEST_HOLD,
        dead_letters: str | None = None,
        spark_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.nats_conn_id = nats_conn_id
        self.spark_conn_id = spark_conn_id
        self.on_settled = on_settled
        self.on_skip = on_skip
        ending.check_on_skip(on_skip)
        self.missing = check_missing(missing)
        self.longest_hold = known_duration("longest_hold", longest_hold)
        self.dead_letters = dead_letters
        self.claim: Mapping[str, Any] = {}  # the claim as the sensor returned it, once the task knows it
        if not templated(on_settled):
            self._check_on_settled()
        if dead_letters is not None and not templated([dead_letters]):
            check_stream_name(dead_letters, "dead_letters")
        check_function(self.python_callable)

    def execute(self, context: Context) -> Any:
        self._check_on_settled()
        self._context, self._ti = context, context["ti"]
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
            with (
                spark_connect(self.spark_conn_id),
                hook.holding(
                    claim,
                    try_number=self._ti.try_number,
                    longest_hold=duration("longest_hold", self.longest_hold),
                    dead_letters=self.dead_letters or None,
                    reprocess=self.on_settled == "reprocess",
                    missing=self.missing,
                ) as held,
            ):
                self._held = held
                if named:
                    self.op_kwargs = {**self.op_kwargs, "claim": held}
                else:
                    arguments.arguments["claim"] = held
                    self.op_args = list(arguments.args)
                return self._settled(held, super().execute_callable, self._context)
        except MessagesMissing as missing:
            if self._held is not None:
                raise  # the function raised it while it read the messages
            raise AirflowFailException(f"the claim cannot be processed again, because {missing}") from brief(missing)


class _JetStreamDecoratedOperator(DecoratedOperator, JetStreamProcessOperator):
    """The operator of ``@task.jetstream``."""

    template_fields: Sequence[str] = JetStreamProcessOperator.template_fields
    template_fields_renderers = PythonOperator.template_fields_renderers
    custom_operator_name: str = "@task.jetstream"

    def __init__(self, **kwargs: Any) -> None:
        upstream = {name: kwargs[name] for name in ("python_callable", "op_args", "op_kwargs")}
        super().__init__(kwargs_to_upstream=upstream, **kwargs)


def jetstream_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Turn a function into a task: ``@task.jetstream``. The claim is held while the function runs, and then settled.

    python_callable:   the function, with a parameter ``claim``.
    multiple_outputs:  whether each item of the returned mapping becomes a separate XCom. Default None: as the
                       function's annotation says.
    kwargs:            the parameters of :class:`JetStreamProcessOperator` and of every Airflow operator.

    Raises:
        InvalidValue: the function is asynchronous, or has no parameter ``claim``.
    """
    decorate = task_decorator_factory(
        multiple_outputs=multiple_outputs, decorated_operator_class=_JetStreamDecoratedOperator, **kwargs
    )

    def checked(function: Callable[..., Any]) -> Any:
        check_function(function)  # here, because the operator of a mapped task is created only when the task runs
        return decorate(function)

    return cast("TaskDecorator", checked if python_callable is None else checked(python_callable))


def check_function(function: Callable[..., Any]) -> None:
    """Check that a function can process a claim.

    function:  the function.

    Raises:
        InvalidValue: the function is asynchronous, or has no parameter ``claim``.
    """
    name = getattr(function, "__name__", None) or repr(function)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise InvalidValue("python_callable", name, "give a function with a parameter named 'claim'") from None
    takes = parameters.get("claim")
    if takes is None or takes.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise InvalidValue(
            "python_callable", name, "give the function a parameter named 'claim', which receives the held claim"
        )
    # Airflow would await such a function without calling execute_callable, in which the claim is held.
    if is_async_callable(function) or inspect.isasyncgenfunction(inspect.unwrap(function)):
        raise InvalidValue("python_callable", name, "this function is async; give a function that is not async")
