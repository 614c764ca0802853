# SPDX-License-Identifier: Apache-2.0
"""The work on a held claim as Dagster runs it: a generator that settles the claim after Dagster has stored its outputs.

Dagster resumes a step's generator after it has stored the output that the generator yielded (``execute_step.py``).
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain, repeat
from typing import Any, NoReturn

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.held import HeldClaim
from dagster_nats_jetstream.resource import JetStreamResource
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, Superseded
from jetstream_handoff.record import check_value

FOREIGN = (AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, Superseded)
"""Errors that say that this attempt cannot settle the claim."""
RETRY_SLACK = timedelta(minutes=5)
"""How long a retry may wait for a process after the retry's delay. After that, the messages are redelivered."""
_EVENTS = (
    dg.AssetCheckEvaluation, dg.AssetCheckResult, dg.AssetMaterialization, dg.AssetObservation, dg.ExpectationResult,
    dg.MaterializeResult, dg.ObserveResult, dg.Output,
)  # fmt: skip


def worked(
    context: dg.OpExecutionContext,
    jetstream: JetStreamResource,
    held: HeldClaim,
    work: Callable[[], Any],
    *,
    required: Collection[str] = (),
    record: bool = False,
) -> Iterator[Any]:
    """Do the work, yield its events to Dagster, and settle the claim.

    The claim ends according to the outcome:

    * Dagster has stored all outputs, and no blocking check failed: the claim is settled.
    * The work raises, and the step's ``retry_policy`` allows a retry: the claim is released for the retry.
    * The work raises otherwise or exits, or a blocking check failed: the claim fails, and its messages are redelivered.
    * Dagster cannot store an output: :meth:`JetStreamResource.holding` ends the claim in the same way.
    * The step is interrupted: the claim is released at once.

    work:      returns the output, a Dagster event, or a generator of events.
    required:  the names of the outputs and check results without which Dagster fails the step. Dagster itself looks for
               them only after the claim has been settled.
    record:    whether the ledger records the outputs, so that a retry of a settled step can return them.

    Raises:
        Failure: the work has not yielded an output that Dagster requires, or has yielded what Dagster refuses.
        InvalidValue: with ``record``, an output is not JSON or too large. Raised before it is stored.
        HoldLost, HeldByAnother, Superseded, AlreadyDone: the claim could not be settled.
    """
    for name in context.op_def.outs:
        context.add_output_metadata(_metadata(held, jetstream), output_name=name)
    outcome = _Outcome(context, record)
    try:
        for event in _events(work(), list(context.op_def.outs)):
            outcome.add(event)
            yield event
        outcome.require(required)
        if outcome.failed:
            held.fail(f"blocking checks failed in {runs.place(context)}: {', '.join(outcome.failed)}")
        else:
            held.settle(outcome.value)
    except FOREIGN:
        raise
    except (Exception, SystemExit) as error:
        if held.lost:
            raise HoldLost(f"claim {held.id} is no longer held: {held.lost}") from error
        delay = runs.retry_delay(context, error)
        if delay is None:
            # Without the error's message, which may contain a secret.
            held.fail(f"{type(error).__name__} in {runs.place(context)}")
        else:
            held.release(delay + RETRY_SLACK)
        raise


def _metadata(held: HeldClaim, jetstream: JetStreamResource) -> dict[str, Any]:
    """Return the claim as metadata of an output."""
    return {
        "jetstream/claim": held.id,
        "jetstream/attempt": held.attempt_id,
        "jetstream/stream": held.stream,
        "jetstream/consumer": held.consumer,
        "jetstream/sequences": str(held.sequences),
        "jetstream/messages": held.count,
        "jetstream/bytes": held.bytes,
        **jetstream.links(held.claim),
    }


def compute(
    function: Callable[..., Any],
    inner: Callable[..., Iterator[Any]],
    context: type,
    resource: str,
    own: Collection[str],
) -> Callable[..., Iterator[Any]]:
    """Return the compute function of an asset or op: ``inner`` with the parameters that Dagster reads from a signature.

    function:  the author's function. It needs the parameter ``claim``.
    inner:     called as ``inner(context, jetstream, call, **arguments)``; ``call(claim)`` calls the function.
    context:   the class of the context.
    resource:  the key of the resource, which is also a parameter of the compute function.
    own:       the parameters of the function that are not inputs, besides ``context`` and the resource.

    Raises:
        InvalidValue: the function has no parameter ``claim``, or is asynchronous.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise InvalidValue("function", name, "its parameters are unknown; give a Python function") from None
    if "claim" not in parameters:
        raise InvalidValue("function", name, "give it a parameter named 'claim', which receives the held claim")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue("function", name, "the function is asynchronous; give a synchronous function")
    hints = typing.get_type_hints(function, include_extras=True)

    def compute_claim(*positional: Any, **arguments: Any) -> Iterator[Any]:
        around = arguments.pop("context") if "context" in arguments else positional[0]
        jetstream = arguments.pop(resource)
        offered = {**arguments, "context": around, resource: jetstream}

        def call(claim: HeldClaim) -> Any:
            given = {**offered, "claim": claim}
            return function(**{each: given[each] for each in parameters if each in given})

        yield from inner(around.op_execution_context, jetstream, call, **arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown = [inspect.Parameter("context", kind, annotation=context)]
    shown += [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in parameters.values()
        if each.name not in ("context", resource, *own)
    ]
    shown += [inspect.Parameter(resource, inspect.Parameter.KEYWORD_ONLY, annotation=JetStreamResource)]
    compute_claim.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    compute_claim.__annotations__ = {each.name: each.annotation for each in shown if each.annotation is not each.empty}
    compute_claim.__name__, compute_claim.__doc__ = name, function.__doc__
    compute_claim.__module__ = function.__module__
    return compute_claim


class _Outcome:
    """What the work has yielded so far. It is checked before Dagster gets it: after an error of Dagster's own, Dagster
    would neither resume the work nor retry the step, and the claim would wait for a retry."""

    def __init__(self, context: dg.OpExecutionContext, record: bool) -> None:
        self._context = context
        self._checks = list(context.assets_def.check_specs) if context.has_assets_def else []
        self._given: set[str] = set()  # names of outputs and checks
        self._outputs: dict[str, Any] | None = {} if record else None
        self.failed: list[str] = []
        """The names of the blocking checks that failed."""

    @property
    def value(self) -> dict[str, Any] | None:
        """The value for the ledger, or None if nothing is recorded."""
        return None if self._outputs is None else {"op": self._context.describe_op(), "outputs": self._outputs}

    def add(self, event: Any) -> None:
        """Add one event.

        Raises:
            Failure: Dagster would refuse the event.
            InvalidValue: an output to record is not JSON, or the outputs are too large together.
        """
        if not isinstance(event, _EVENTS):
            self._refuse(f"has yielded a {type(event).__name__}", "yield outputs and other events of Dagster")
        if isinstance(event, dg.Output):
            self._add_output(event.output_name, event.value)
        elif isinstance(event, dg.MaterializeResult | dg.ObserveResult):
            if self._outputs is not None:
                kind = type(event).__name__
                self._refuse(f"has yielded a {kind}, which the ledger cannot record", "return or yield the value")
            if event.asset_key not in (None, *self._context.selected_asset_keys):
                self._refuse(f"has yielded a result of another asset, {event.asset_key}", "leave out its asset_key")
            self._add_output("result", getattr(event, "value", None))
        for each in _results(event):
            self._add_check(each)

    def require(self, names: Collection[str]) -> None:
        """Raise Failure unless each of these outputs and checks was given."""
        if missing := sorted(set(names) - self._given):
            wrong = f"has not returned or yielded {', '.join(map(repr, missing))}"
            self._refuse(wrong, "return or yield each output, and a result of each asset check")

    def _add_output(self, name: str, value: Any) -> None:
        declared = self._context.op_def.outs.get(name)
        if declared is None:
            self._refuse(f"has yielded output {name!r}, which it does not declare", "declare it, or correct its name")
        self._add_once(name)
        found = dg.check_dagster_type(declared.dagster_type, value)
        if not found.success:
            wrong = f"has given output {name!r} the wrong type ({found.description})"
            self._refuse(wrong, "return a value of its dagster_type")
        if self._outputs is not None:
            self._outputs[name] = value
            check_value(self.value)
            if json.loads(json.dumps(value)) != value:
                remedy = (
                    "the ledger would return another value to a retry; return lists, and dicts whose keys are strings"
                )
                raise InvalidValue(f"output {name}", type(value), remedy)

    def _add_check(self, result: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> None:
        """Note a check. As in Dagster (``execute_step.py``), an evaluation itself says whether it blocks."""
        if isinstance(result, dg.AssetCheckEvaluation):
            name, blocking = result.check_name, result.blocking
        else:
            specs = [
                each
                for each in self._checks
                if result.check_name in (None, each.name) and result.asset_key in (None, each.asset_key)
            ]
            if len(specs) != 1:
                wrong = f"has yielded a result of a check that is not declared, {result.check_name!r}"
                self._refuse(wrong, "add the check to check_specs, or correct its name")
            name, blocking = specs[0].name, specs[0].blocking
            self._add_once(name)
        if not result.passed and result.severity == dg.AssetCheckSeverity.ERROR and blocking:
            self.failed.append(name)

    def _add_once(self, name: str) -> None:
        if name in self._given:
            self._refuse(f"has yielded {name!r} twice", "return or yield each output and each check once")
        self._given.add(name)

    def _refuse(self, wrong: str, remedy: str) -> NoReturn:
        what = f"{self._context.describe_op()} {wrong}, so its claim is not settled; {remedy}"
        raise dg.Failure(what, allow_retries=False)


def _events(result: Any, names: Sequence[str]) -> Iterable[Any]:
    """Return the events for Dagster.

    names:  the names of the outputs. Several outputs are returned as a tuple.
    """
    if inspect.isgenerator(result):
        return result
    if result is None and not names:
        return ()
    several = isinstance(result, tuple | list) and any(isinstance(each, _EVENTS) for each in result)
    if isinstance(result, _EVENTS) or not (several or (isinstance(result, tuple) and len(names) > 1)):
        result = (result,)
    named = zip(result, chain(names, repeat("result")), strict=False)
    return [each if isinstance(each, _EVENTS) else dg.Output(each, name) for each, name in named]


def _results(event: Any) -> Sequence[Any]:
    """Return the check results in an event."""
    alone = isinstance(event, dg.AssetCheckResult | dg.AssetCheckEvaluation)
    return [event] if alone else getattr(event, "check_results", None) or []


def returned(done: AlreadyDone, context: dg.OpExecutionContext) -> Iterator[dg.Output[Any]]:
    """Yield the outputs that this op recorded when it settled the claim.

    Raises:
        dg.Failure: the claim was not settled by this op.
    """
    value = done.value
    outputs = value.get("outputs") if isinstance(value, dict) and value.get("op") == context.describe_op() else None
    if not isinstance(outputs, dict) or not outputs.keys() <= context.op_def.outs.keys():
        remedy = "process a claim in one op; what belongs together can be called from its function"
        raise dg.Failure(f"{done}, but not by {context.describe_op()}; {remedy}", allow_retries=False)
    for name in outputs:
        yield dg.Output(outputs[name], name)
