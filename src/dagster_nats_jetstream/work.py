# SPDX-License-Identifier: Apache-2.0
"""The work on a held claim as Dagster runs it: a generator that settles the claim after Dagster has stored its outputs.

Dagster resumes a step's generator after it has stored the output that the generator yielded (``execute_step.py``).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

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
    blocking: Collection[str] = (),
    record: bool = False,
) -> Iterator[Any]:
    """Do the work, yield its events to Dagster, and settle the claim.

    The claim ends according to the outcome:

    * Dagster has stored all outputs, and no blocking check failed: the claim is settled.
    * The work raises, and the step's ``retry_policy`` allows a retry: the claim is released for the retry.
    * The work raises otherwise, or a blocking check failed: the claim fails, and its messages are redelivered.
    * Dagster cannot store an output: :meth:`JetStreamResource.holding` ends the claim in the same way.
    * The step is interrupted: the claim is released at once.

    work:      returns the output, a Dagster event, or a generator of events.
    required:  the names of the outputs and check results without which Dagster fails the step. Dagster itself looks for
               them only after the claim has been settled.
    blocking:  the names of the checks that fail the step.
    record:    whether the ledger records the outputs, so that a retry of a settled step can return them.

    Raises:
        Failure: the work has not yielded an output that Dagster requires.
        InvalidValue: with ``record``, an output is not JSON or too large. Raised before it is stored.
        HoldLost, HeldByAnother, Superseded, AlreadyDone: the claim could not be settled.
    """
    for name in context.op_def.outs:
        context.add_output_metadata(_metadata(held, jetstream), output_name=name)
    outputs: dict[str, Any] | None = {} if record else None
    failed: list[str] = []
    missing = set(required)
    try:
        for event in _events(work(), list(context.op_def.outs)):
            failed += _failed(event, blocking)
            missing -= _given(event, missing)
            if isinstance(event, dg.Output):
                outputs = _checked(context, event, outputs)
            yield event
        _check_complete(context, missing)
        if failed:
            held.fail(f"blocking checks failed in {runs.place(context)}: {', '.join(failed)}")
        else:
            held.settle(outputs)
    except FOREIGN:
        raise
    except Exception as error:
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
    parameters = inspect.signature(function).parameters
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


def _check_complete(context: dg.OpExecutionContext, missing: Collection[str]) -> None:
    if missing:
        wrong = f"{context.describe_op()} has not returned or yielded {', '.join(map(repr, sorted(missing)))}"
        remedy = "return or yield each output, and a result of each asset check"
        raise dg.Failure(f"{wrong}, so its claim is not settled; {remedy}", allow_retries=False)


def _checked(
    context: dg.OpExecutionContext, output: dg.Output[Any], outputs: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the outputs to record with one more, or None if none are recorded.

    Raises:
        Failure: the output has another type than the op or asset declares. Dagster itself would neither resume the work
            nor retry it.
        InvalidValue: an output to record is not JSON, or they are too large together.
    """
    declared = context.op_def.outs.get(output.output_name)
    found = declared and dg.check_dagster_type(declared.dagster_type, output.value)
    if found and not found.success:
        wrong = f"output {output.output_name!r} of {context.describe_op()} has the wrong type ({found.description})"
        raise dg.Failure(
            f"{wrong}, so its claim is not settled; return a value of its dagster_type", allow_retries=False
        )
    if outputs is None:
        return None
    recorded = {**outputs, output.output_name: output.value}
    check_value(recorded)
    return recorded


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


def _given(event: Any, missing: Collection[str]) -> set[str]:
    """Return the names of the outputs and checks of an event. The result of an asset's only check may have no name."""
    names = {each.check_name for each in _results(event)}
    if isinstance(event, dg.MaterializeResult | dg.ObserveResult):
        names.add("result")
    elif isinstance(event, dg.Output):
        names.add(event.output_name)
    return names | (set(missing) - {"result"} if None in names else set())


def _failed(event: Any, blocking: Collection[str]) -> list[str]:
    """Return the names of blocking checks that failed, as Dagster counts them (``execute_step.py``)."""
    return [
        each.check_name or "the check"
        for each in _results(event)
        if not each.passed
        and each.severity == dg.AssetCheckSeverity.ERROR
        and blocking
        and each.check_name in (None, *blocking)
    ]


def returned(done: AlreadyDone, outputs: Mapping[str, Any]) -> Iterator[dg.Output[Any]]:
    """Yield the outputs that a settled claim recorded.

    Raises:
        dg.Failure: the claim was not settled by this op.
    """
    value = done.value
    if not isinstance(value, dict) or not value.keys() <= outputs.keys():
        raise dg.Failure(f"{done}, but not by this op, whose outputs it does not record", allow_retries=False)
    for name in value:
        yield dg.Output(value[name], name)
