# SPDX-License-Identifier: Apache-2.0
"""The work on a held claim as Dagster runs it: a generator that settles the claim after Dagster has stored its outputs.

Dagster resumes a step's generator after it has stored the output that the generator yielded (``execute_step.py``).
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import FunctionType, MethodType
from typing import Any, NoReturn

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.resource import JetStreamResource
from jetstream_client.errors import InvalidValue
from jetstream_handoff.console import console_page
from jetstream_handoff.durations import RETRY_SLACK
from jetstream_handoff.errors import (
    FOREIGN,
    AlreadyDone,
    WorkNotDone,
)
from jetstream_handoff.hold.driven import check_driven, is_stream, threads_ended
from jetstream_handoff.hold.ending import How, end_hold
from jetstream_handoff.ledger.record import check_value
from jetstream_handoff.rules.missing import is_final, reason_of
from pyspark_jetstream.held_claim import HeldClaim

_CONTEXT = ("context", "_context", "context_", "_")
"""The names by which Dagster recognises a first parameter as the context."""
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
    required: Collection[str | dg.AssetCheckKey],
    record: bool = False,
) -> Iterator[Any]:
    """Do the work, yield its events to Dagster, and settle the claim.

    The claim ends according to the outcome:

    * Dagster has stored all outputs, and no blocking check failed: the claim is settled.
    * The work raises, and the step's ``retry_policy`` allows a retry: the claim is released for the retry.
    * Messages of the claim no longer exist, and its reader does not skip them: the claim fails, and the step fails
      without retry.
    * The work raises otherwise or exits, or a blocking check failed: the claim fails, and its messages are redelivered.
    * Dagster refuses or cannot store an output: :meth:`JetStreamResource.holding` ends the claim as Dagster decides.
    * The step is interrupted: the claim is released at once.

    work:      returns the output, a Dagster event, or a generator of events.
    required:  the names of the outputs and check results without which Dagster fails the step. Dagster itself looks for
               them only after the claim has been settled.
    record:    whether the ledger records the outputs, so that a retry of a settled step can return them.

    Raises:
        Failure: the work has not yielded an output that Dagster requires, or has yielded one that cannot be recorded;
            or the function has returned a coroutine, a future or an iterator, or has left a thread at work.
        InvalidValue: with ``record``, an output is not JSON or too large. Raised before it is stored.
        HoldLost, HeldByAnother, Superseded, AlreadyDone: the claim could not be settled.
    """
    for name in context.op_def.outs:
        context.add_output_metadata(_metadata(held, jetstream), output_name=name)
    outcome, ending = _Outcome(context, record), False
    try:
        with threads_ended():
            for event in _events(work(), list(context.op_def.outs)):
                outcome.add(event)
                yield event
                outcome.stored(event)
        outcome.require(required)
        ending = True
        why = f"blocking checks failed in {runs.place(context)}: {', '.join(outcome.failed)}"
        end_hold(held, How.FAILED if outcome.failed else How.SUCCEEDED, value=outcome.value, reason=why)
    except (GeneratorExit, KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        raise
    except BaseException as error:
        if ending and isinstance(error, (AlreadyDone, *FOREIGN)):
            raise
        _give_up(context, held, error)
        if isinstance(error, WorkNotDone):
            what = f"{context.describe_op()} has not settled its claim: {error}"
            raise dg.Failure(what, allow_retries=False) from error
        if gone := reason_of(error):
            raise dg.Failure(f"claim {held.id} cannot be read: {gone}", allow_retries=False) from error
        raise


def _give_up(context: dg.OpExecutionContext, held: HeldClaim, error: BaseException) -> None:
    """Release the claim if Dagster retries the step after this error, or fail it. Raises HoldLost."""
    final = isinstance(error, (AlreadyDone, *FOREIGN, WorkNotDone))
    delay = None if final else runs.retry_delay(context, error)
    end_hold(
        held,
        How.UNREADABLE if is_final(error) else How.FAILED,
        next_try=None if delay is None else delay + RETRY_SLACK,
        reason=f"{type(error).__name__} in {runs.place(context)}",  # the error's message may contain a secret
        cause=error,
    )


def _metadata(held: HeldClaim, jetstream: JetStreamResource) -> dict[str, Any]:
    """Return the claim as metadata of an output."""
    page = console_page(jetstream.console, held.stream, held.consumer, held.id) if jetstream.console else None
    return {
        runs.CLAIM: held.id,
        runs.ATTEMPT: held.attempt_id,
        "jetstream/stream": held.stream,
        "jetstream/consumer": held.consumer,
        "jetstream/sequences": str(held.sequences),
        "jetstream/messages": held.count,
        "jetstream/bytes": held.bytes,
        **({"jetstream/console": dg.MetadataValue.url(page)} if page else {}),
    }


def compute(
    function: Callable[..., Any],
    inner: Callable[..., Iterator[Any]],
    context: type,
    resource: str,
    *,
    own: Collection[str],
    options: Mapping[str, Any],
) -> Callable[..., Iterator[Any]]:
    """Return the compute function of an asset or op: ``inner`` with the parameters that Dagster reads from a signature.

    function:  the author's function. It needs the parameter ``claim``.
    inner:     called as ``inner(context, jetstream, call, **arguments)``; ``call(claim)`` calls the function.
    context:   the class of the context.
    resource:  the key of the resource.
    own:       the parameters of the function that are not inputs, besides its context and the resource.
    options:   the parameters of ``@dg.asset`` or ``@dg.op``, as :func:`with_resource` returns them.

    Raises:
        InvalidValue: the function has no parameter ``claim``, is asynchronous, or cannot be called by Dagster.
    """
    name = getattr(function, "__name__", type(function).__name__)  # the repr may contain a secret
    if not isinstance(function, FunctionType | MethodType):
        raise InvalidValue("function", name, "this is not a function; give a function that calls it")
    parameters = inspect.signature(function).parameters
    if "claim" not in parameters:
        raise InvalidValue("function", name, "give it a parameter named 'claim', which receives the held claim")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue("function", name, "the function is asynchronous; give a synchronous function")
    kinds = {each.kind for each in parameters.values()}
    if kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
        raise InvalidValue("function", name, "its arguments are passed by name; remove '/' and '*args'")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        remedy = f"an annotation cannot be resolved ({error}); import the name at run time, too"
        raise InvalidValue("function", name, remedy) from None
    first = next(iter(parameters))
    around = first if first in _CONTEXT else "context"

    def compute_claim(*positional: Any, **arguments: Any) -> Iterator[Any]:
        outer = arguments.pop("context") if "context" in arguments else positional[0]
        arguments.pop(resource, None)
        jetstream = getattr(outer.resources, resource)

        def call(claim: HeldClaim) -> Any:
            offered = {around: outer, resource: jetstream, **arguments, "claim": claim}
            wanted = {*parameters, *arguments} if inspect.Parameter.VAR_KEYWORD in kinds else {*parameters}
            return function(**{each: offered[each] for each in offered if each in wanted})

        yield from inner(outer.op_execution_context, jetstream, call, **arguments)

    shown = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=context)]
    shown += [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in parameters.values()
        if each.name not in (around, resource, *own)
    ]
    if "required_resource_keys" not in options:
        shown += [inspect.Parameter(resource, inspect.Parameter.KEYWORD_ONLY, annotation=JetStreamResource)]
    shown.sort(key=lambda each: each.kind)
    compute_claim.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    compute_claim.__annotations__ = {each.name: each.annotation for each in shown if each.annotation is not each.empty}
    compute_claim.__name__, compute_claim.__doc__ = name, function.__doc__
    compute_claim.__module__ = function.__module__
    return compute_claim


def with_resource(options: Mapping[str, Any], resource: str) -> dict[str, Any]:
    """Return the parameters of ``@dg.asset`` or ``@dg.op``. The ``required_resource_keys`` of an author include the
    resource, because Dagster takes resources either from these keys or from the parameters of a function."""
    keys = options.get("required_resource_keys")
    return {**options} if keys is None else {**options, "required_resource_keys": {*keys, resource}}


class _Outcome:
    """What the work has yielded so far. Dagster itself refuses an unknown or repeated output and a wrong type when they
    are yielded. It then does not resume the work, so the claim is not settled."""

    def __init__(self, context: dg.OpExecutionContext, record: bool) -> None:
        self._context = context
        self._checks = list(context.assets_def.check_specs) if context.has_assets_def else []
        self._given: set[str | dg.AssetCheckKey] = set()
        self.value: Any = {"op": context.describe_op(), "outputs": {}} if record else None
        """The value for the ledger, or None if nothing is recorded. Older releases compare ``op``."""
        self.failed: list[str] = []
        """The names of the blocking checks that failed."""

    def add(self, event: Any) -> None:
        """Add one event.

        Raises:
            Failure: an output to record is that of an asset.
            InvalidValue: an output to record is not JSON, or the outputs are too large together.
            WorkNotDone: the value stands for work that is still to be done.
        """
        value = getattr(event, "value", None)
        # An I/O manager may store what these yield.
        check_driven(value, iterators=not (inspect.isgenerator(value) or is_stream(value)))
        if isinstance(event, dg.Output):
            self._given.add(event.output_name)
            if self.value is not None:
                self._record(event.output_name, event.value)
        elif isinstance(event, dg.MaterializeResult | dg.ObserveResult):
            self._given.add("result")
            if self.value is not None:
                kind = type(event).__name__
                self._refuse(f"has yielded a {kind}, which the ledger cannot record", "return or yield the value")
        for each in _results(event):
            self._add_check(each)

    @staticmethod
    def stored(event: Any) -> None:
        """Look at an event that Dagster has handled.

        Raises:
            WorkNotDone: an output is a generator or a stream of Arrow batches that nobody has driven to its end.
        """
        value: Any = getattr(event, "value", None)
        unread = is_stream(value) and next(value, None) is not None
        if unread or (inspect.isgenerator(value) and inspect.getgeneratorstate(value) != inspect.GEN_CLOSED):
            check_driven(value)

    def require(self, names: Collection[str | dg.AssetCheckKey]) -> None:
        """Raise Failure unless each of these outputs and checks was given."""
        missing = set(names) - self._given
        if shown := sorted(repr(each.name if isinstance(each, dg.AssetCheckKey) else each) for each in missing):
            wrong = f"has not returned or yielded {', '.join(shown)}"
            self._refuse(wrong, "return or yield each output, and a result of each asset check")

    def _record(self, name: str, value: Any) -> None:
        self.value["outputs"][name] = value
        check_value(self.value)
        if json.loads(json.dumps(value)) != value:
            remedy = "the ledger would return another value to a retry; return lists, and dicts whose keys are strings"
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
                return  # Dagster refuses it
            name, blocking = specs[0].name, specs[0].blocking
            # In the op of a graph's asset, the output for a check has the name of the check.
            self._given.add(specs[0].key if self.value is None else name)
        if not result.passed and result.severity == dg.AssetCheckSeverity.ERROR and blocking:
            self.failed.append(name)

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
    return [_output(each, name) for each, name in zip(result, chain(names, repeat("result")), strict=False)]


def _output(each: Any, name: str) -> Any:
    """Return a value as the output with this name. As in Dagster, an output with the default name gets it, too."""
    if isinstance(each, dg.Output) and each.output_name == "result":
        return dg.Output(each.value, name, metadata=each.metadata, data_version=each.data_version, tags=each.tags)
    return each if isinstance(each, _EVENTS) else dg.Output(each, name)


def _results(event: Any) -> Sequence[Any]:
    """Return the check results in an event."""
    alone = isinstance(event, dg.AssetCheckResult | dg.AssetCheckEvaluation)
    return [event] if alone else getattr(event, "check_results", None) or []
