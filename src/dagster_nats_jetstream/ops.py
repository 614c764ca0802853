# SPDX-License-Identifier: Apache-2.0
"""Ops: take several claims in one run, process each of them, publish messages, purge a stream."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.assets import WAIT, checked
from dagster_nats_jetstream.between import check_worked_after
from dagster_nats_jetstream.partitions import check_subject, of_partition
from dagster_nats_jetstream.resource import JetStreamResource
from dagster_nats_jetstream.work import compute, with_resource, worked
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name
from jetstream_client.publish.position import Position
from jetstream_client.quantities import check_count, check_duration
from jetstream_client.stores.key_value import check_bucket
from jetstream_handoff.claim import Claim
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.errors import FOREIGN, AlreadyDone
from jetstream_handoff.rules.missing import Missing, check_missing


def take_claims(
    *,
    stream: str,
    consumer: str,
    max_messages: int | None = None,
    messages_per_claim: int | None = None,
    ordered_by: str | None = None,
    claims: int | None = None,
    on_poison: str = "skip",
    max_claims: int = 1_000,
    wait: timedelta = WAIT,
    subject: str | None = None,
    name: str = "take_claims",
    resource: str = "jetstream",
    retry_policy: dg.RetryPolicy | None = None,
    **taking: Any,
) -> dg.OpDefinition:
    """Return an op that takes a batch and yields its claims as dynamic outputs: ``take().map(process)``, in which
    ``process`` is a :func:`claimed_op`.

    stream, consumer:    the names of the stream and of its pull consumer, which is created if it does not exist, unless
                         ``create_consumer`` is False.
    max_messages:        the largest number of messages in the batch. Default 1,000,000, or fewer if ``max_claims``
                         claims cannot contain as many.
    messages_per_claim:  the largest number of messages in a claim. Default: one claim.
    ordered_by:          process the messages of each key in order: ``{2}`` or ``{1}.{3}`` for tokens of the subject
                         (counted from 1), ``subject``, or ``header:<name>``. All messages of a key are in one claim,
                         and the next messages are taken when no claim is open. Default: no order.
    claims:              with ``ordered_by``, instead of ``messages_per_claim``: the number of claims into which the
                         messages are divided by key. Default: one claim.
    on_poison:           with ``ordered_by`` and ``max_failures``, what becomes of a key whose message becomes a dead
                         letter: ``skip`` (default) goes on with its next message; with ``stop_key``, all later messages
                         of the key become dead letters, too.
    max_claims:          the largest number of claims that the op takes, each of which is a mapped step. Dagster has no
                         limit, but it starts a process for each step by default. Default 1,000.
    wait:                how long to wait for messages. Default 30 s. If none arrive, nothing is mapped.
    subject:             in a job with partitions: the subjects of a partition, with the token ``{partition}``, for
                         example ``orders.{partition}.>``. Each partition has its own consumer,
                         ``<consumer>-<partition>``. Default: the job has no partitions.
    name:                the name of the op, which is unique in a code location. Default ``take_claims``.
    resource:            the key of the resource. Default ``jetstream``.
    retry_policy:        the retry policy of the op. A retry gets the claims of the earlier try.
    taking:              other parameters of :class:`~jetstream_handoff.take.taking.Taking`: ``min_messages``,
                         ``min_bytes``, ``max_wait``, ``gather``, ``hand_off_timeout``, ``consumer_config``,
                         ``create_consumer``, ``max_failures``, ``dead_letters``, and ``until``, which may be a
                         ``datetime`` with a time zone.

    The mapping key is the claim's id. A re-execution from failure does not run mapped steps that never started
    (Dagster's ``plan/state.py``). A :func:`~dagster_nats_jetstream.sensor.jetstream_sensor` requests a run that takes
    over such claims.

    Raises:
        InvalidValue: a parameter is invalid. Raised when the code location is loaded.
        ConsumerUnsuitable: ``consumer_config`` breaks a rule. Raised when the code location is loaded.
    """
    check_duration("wait", wait)
    check_count("max_claims", max_claims)
    most = max_claims * messages_per_claim if messages_per_claim is not None else None
    batch = checked(
        stream=stream,
        consumer=consumer,
        max_messages=min(1_000_000, most or 1_000_000) if max_messages is None else max_messages,
        messages_per_claim=messages_per_claim,
        ordered_by=ordered_by,
        claims=claims,
        on_poison=on_poison,
        max_claims=max_claims,
        **taking,
    )
    if subject is not None:
        check_subject(subject)
    if most is not None and batch.max_messages > most:
        remedy = f"{max_claims} claims of {messages_per_claim} messages contain at most {most}; give that many or fewer"
        raise InvalidValue("max_messages", max_messages, f"{remedy}, or raise messages_per_claim or max_claims")

    @dg.op(
        name=name,
        out=dg.DynamicOut(dict),
        required_resource_keys={resource},
        retry_policy=retry_policy,
        description=f"Take claims of stream {stream}, consumer {consumer}.",
    )
    def take(context: dg.OpExecutionContext) -> Iterator[dg.DynamicOutput[dict[str, Any]]]:
        jetstream: JetStreamResource = getattr(context.resources, resource)
        wanted = replace(batch, owner=runs.owner(context), predecessors=runs.predecessors(context))
        if subject is not None:
            wanted = of_partition(wanted, subject, context.partition_key)
        claims = jetstream.take(context, wanted, wait)
        count = sum(claim.count for claim in claims)
        context.log.info(
            "%d claims of %d messages of stream %s, consumer %s", len(claims), count, stream, wanted.consumer
        )
        for claim in claims:
            yield dg.DynamicOutput(claim.to_json(), mapping_key=claim.id)

    return take


def claimed_op(
    *,
    longest_hold: timedelta = LONGEST_HOLD,
    dead_letters: str | None = None,
    missing: Missing = "error",
    resource: str = "jetstream",
    **op: Any,
) -> Callable[[Callable[..., Any]], dg.OpDefinition]:
    """Turn a function into an op that holds the claim of its input ``claim``, and settles it after Dagster has stored
    the outputs.

    The function has a parameter ``claim``, a :class:`~pyspark_jetstream.held_claim.HeldClaim`, and otherwise those of a
    function of ``@dg.op``. Its outputs are JSON of at most 8 KiB, because the ledger records them: a retry of a settled
    step returns them and does not work again. Write larger outputs under ``claim.attempt_id``.

    longest_hold:  the hold is lost after this time. Default 24 hours.
    dead_letters:  the name of the dead-letter stream. Default ``DEAD_<stream>``.
    missing:       what reading the claim does with messages that no longer exist: ``"error"`` (default) raises
                   MessagesMissing, and the step fails without retry; ``"skip"`` reads the others, and the claim's
                   receipt names the missing ones.
    resource:      the key of the :class:`~dagster_nats_jetstream.resource.JetStreamResource`. Default ``jetstream``.
    op:            the parameters of ``@dg.op``. Set ``retry_policy`` here or on the job, not with
                   ``with_retry_policy``.
                   Outputs cannot be dynamic.

    A claim has one claimed op: another op for the same claim fails. A step whose claim belongs to another run fails
    without a retry.

    Raises:
        InvalidValue: the function is unsuitable, when the code location is loaded; or an output is not JSON or too
            large, before it is stored.
    """

    check_duration("longest_hold", longest_hold, timedelta(seconds=1))
    check_missing(missing)

    def process(context: Any, jetstream: JetStreamResource, call: Any, *, claim: Any, **_: Any) -> Iterator[Any]:
        of_hold = {"longest_hold": longest_hold, "dead_letters": dead_letters, "missing": missing}
        options = {"connection": resource, **of_hold}
        needed = [out.name for out in context.op_def.output_defs if out.is_required and not out.dagster_type.is_nothing]
        began = False
        try:
            taken = Claim.from_json(claim)
            check_worked_after(context, taken)
            with jetstream.holding(context, taken, **options) as held:
                began = True
                yield from worked(context, jetstream, held, lambda: call(held), required=needed, record=True)
                return
        except (AlreadyDone, *FOREIGN) as foreign:
            if began or not isinstance(foreign, AlreadyDone):
                raise dg.Failure(f"{type(foreign).__name__}: {foreign}", allow_retries=False) from foreign
            done = foreign
        context.log.info("%s; returning the recorded outputs", done)
        yield from _returned(done, context, needed)

    def decorate(function: Callable[..., Any]) -> dg.OpDefinition:
        ins = {"claim": dg.In(dict, description="A claim as take_claims yields it."), **op.get("ins", {})}
        options = with_resource({**op, "ins": ins}, resource)
        inner = compute(function, process, dg.OpExecutionContext, resource, own=(), options=options)
        made: dg.OpDefinition = dg.op(**options)(inner)
        if any(each.is_dynamic for each in made.output_defs):
            remedy = "the ledger cannot record dynamic outputs; return their values as a list, and map it in another op"
            raise InvalidValue("out", "DynamicOut", remedy)
        return made

    return decorate


def _returned(done: AlreadyDone, context: dg.OpExecutionContext, needed: Iterable[str]) -> Iterator[dg.Output[Any]]:
    """Yield the outputs that an earlier try of this step recorded when it settled the claim.

    needed:  the names of the outputs without which Dagster fails the op.

    Raises:
        dg.Failure: the op had other outputs at that time.
    """
    outputs = done.value.get("outputs") if isinstance(done.value, dict) else None
    if not isinstance(outputs, dict) or not outputs.keys() <= context.op_def.outs.keys():
        remedy = f"{context.describe_op()} has other outputs now; give it the outputs that it had, or start a new run"
        raise dg.Failure(f"{done}, but {remedy}", allow_retries=False)
    for name in {**outputs, **dict.fromkeys(needed)}:  # the output of an asset check is not recorded
        yield dg.Output(outputs.get(name), name)


def publish_messages(
    function: Callable[[], Iterable[Any]],
    *,
    stream: str,
    name: str | None = None,
    objects: str | None = None,
    resource: str = "jetstream",
    retry_policy: dg.RetryPolicy | None = None,
) -> dg.GraphDefinition:
    """Return a graph that publishes messages, waits for the stream's answer to each, and outputs
    ``{"stream", "stored", "duplicates", "first", "last", "in_order"}``.

    function:  called without arguments; returns messages as :meth:`JetStreamResource.publish` accepts them, the same
               ones when it is called again.
    stream:    the name of the stream that must store them.
    name:      the name of the graph. Default: that of the function.
    objects:   the name of the object store for large payloads, as for :meth:`JetStreamResource.publish`. Default None.
    resource, retry_policy:  the key of the resource, and the retry policy of the op that publishes.

    The graph's first op stores the position of the stream's end as its output. A retry or a re-execution from failure
    begins after it, and stores no message twice. The input ``start`` waits for another op, for example one that creates
    the stream.

    Raises:
        InvalidValue: a name is invalid, when the code location is loaded.
        PublishFailed, DuplicatesPossible: as :meth:`JetStreamResource.publish`.
    """
    check_stream_name(stream)
    if objects is not None:
        check_bucket(objects, "objects")
    title = name or getattr(function, "__name__", "publish_messages")

    @dg.op(name=f"{title}_position", required_resource_keys={resource}, ins={"start": dg.In(dg.Nothing)})
    def position(context: dg.OpExecutionContext) -> dict[str, Any]:
        jetstream: JetStreamResource = getattr(context.resources, resource)
        return jetstream.position(stream).to_json()

    @dg.op(name=f"{title}_publish", required_resource_keys={resource}, retry_policy=retry_policy)
    def publish(context: dg.OpExecutionContext, since: dict[str, Any]) -> dict[str, Any]:
        jetstream: JetStreamResource = getattr(context.resources, resource)
        scope = "/".join((context.job_name, runs.group(context.run), runs.step(context)))
        stored = jetstream.publish(stream, function(), scope=scope, since=Position.from_json(since), objects=objects)
        context.log.info("stream %s has stored %d messages, %d of them before", stream, stored.count, stored.duplicates)
        return asdict(stored)

    @dg.graph(name=title, ins={"start": dg.GraphIn()})
    def publishing(start: Any) -> Any:
        return publish(position(start=start))

    return publishing


def purge_stream(
    *,
    stream: str,
    name: str = "purge_stream",
    resource: str = "jetstream",
    **which: Any,
) -> dg.OpDefinition:
    """Return an op named ``name`` that removes messages from ``stream``, and outputs how many.

    resource:  the key of the resource.
    which:     as in :meth:`JetStreamResource.purge`.
    """
    check_stream_name(stream)

    @dg.op(name=name, required_resource_keys={resource})
    def purge(context: dg.OpExecutionContext) -> int:
        jetstream: JetStreamResource = getattr(context.resources, resource)
        return jetstream.purge(stream, **which)

    return purge
