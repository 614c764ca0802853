# SPDX-License-Identifier: Apache-2.0
"""An asset that is materialized from one claim in each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg

from dagster_nats_jetstream import earlier, runs
from dagster_nats_jetstream.partitions import check_partitions, of_partition
from dagster_nats_jetstream.resource import JetStreamResource
from dagster_nats_jetstream.work import compute, with_resource, worked
from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import check_duration
from jetstream_handoff.durations import GATHER, HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.rules.consumer import check_config
from jetstream_handoff.rules.missing import Missing, check_missing
from jetstream_handoff.rules.order_key import OrderKey
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.times import instant
from pyspark_jetstream.held_claim import HeldClaim

WAIT = timedelta(seconds=30)
"""How long a step waits for messages by default."""


def claimed_asset(
    *,
    stream: str,
    consumer: str,
    max_messages: int = 100_000,
    min_messages: int = 1,
    min_bytes: int | None = None,
    max_wait: timedelta | None = None,
    until: datetime | str | None = None,
    gather: timedelta = GATHER,
    wait: timedelta = WAIT,
    consumer_config: Mapping[str, Any] | None = None,
    create_consumer: bool = True,
    max_failures: int | None = None,
    ordered_by: str | None = None,
    dead_letters: str | None = None,
    hand_off_timeout: timedelta = HAND_OFF_TIMEOUT,
    longest_hold: timedelta = LONGEST_HOLD,
    missing: Missing = "error",
    subject: str | None = None,
    resource: str = "jetstream",
    output_required: bool = True,
    check_specs: Sequence[dg.AssetCheckSpec] | None = None,
    **asset: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Turn a function into an asset: its step takes one claim, calls the function with it, and settles the claim after
    Dagster has stored the output and the blocking checks have passed.

    The function has a parameter ``claim``, a :class:`~pyspark_jetstream.held_claim.HeldClaim`, and otherwise those of a
    function of ``@dg.asset``. It returns the value to store or a ``dg.MaterializeResult``, or is a generator of events.
    Dagster checks the value against ``dagster_type`` and ignores the function's return annotation.

    stream, consumer: the names of the stream and of its pull consumer.
    max_messages:     the largest number of messages in the claim. Default 100,000.
    min_messages:     the smallest number. Default 1.
    min_bytes:        the smallest size of their payloads together, unless there are ``max_messages``. Default: any.
    max_wait:         fewer messages are enough when the stream stored the oldest of them this long ago, at least a
                      second. Default: no limit.
    until:            take only messages that the stream stored before this time, and begin when all of them are stored:
                      a ``datetime`` with a time zone, or ISO 8601 such as ``2026-11-21T03:00:00Z``. Default: no end.
    gather:           the claim is complete this long after its first message, or earlier after a pause of half a
                      second and of twice any pause before it. Default 5 s.
    wait:             how long the step waits for messages. If none arrive, the asset is not materialized, and the run
                      succeeds. Default 30 s.
    consumer_config:  fields of the consumer.
    create_consumer:  whether to create the consumer if it does not exist. Otherwise that is an error. Default True.
    max_failures:     dead-letter a message that has failed alone this many times. Default: never.
    ordered_by:       process the messages of each key in order, also when several runs work at the same time: a claim
                      is taken when no earlier one is open. The key, as in ``take_claims``, says which messages a failed
                      one holds back. A sensor requests no run while a claim is at work. Default: no order.
    dead_letters:     the name of the dead-letter stream. Default ``DEAD_<stream>``.
    hand_off_timeout: the lease of the claim until it is held. Default 15 minutes.
    longest_hold:     the hold is lost after this time. Default 24 hours.
    missing:          what reading the claim does with messages that no longer exist: ``"error"`` (default) raises
                      MessagesMissing, and the step fails without retry; ``"skip"`` reads the others, and the claim's
                      receipt names the missing ones.
    subject:          with ``partitions_def``: the subjects of a partition, with the token ``{partition}``, for example
                      ``orders.{partition}.>``. Each partition has its own consumer, ``<consumer>-<partition>``.
    resource:         the key of the :class:`~dagster_nats_jetstream.resource.JetStreamResource`. Default ``jetstream``.
    output_required:  whether the function must return or yield a materialization, for the claim to be settled. Default
                      True.
    check_specs, asset:  the parameters of ``@dg.asset``. The claim does not wait for checks of ``@dg.asset_check``,
                      which run in separate steps after this one.

    A retry gets the messages of the earlier try, unless another run group has taken them. Do not start two
    re-executions of a run at the same time: the later one takes the claim from the earlier one.

    Raises:
        InvalidValue: a parameter is invalid. Raised when the code location is loaded.
        ConsumerUnsuitable: ``consumer_config`` breaks a rule. Raised when the code location is loaded.
    """
    taking = checked(
        stream=stream,
        consumer=consumer,
        max_messages=max_messages,
        min_messages=min_messages,
        min_bytes=min_bytes,
        max_wait=max_wait,
        until=until,
        gather=gather,
        hand_off_timeout=hand_off_timeout,
        consumer_config=dict(consumer_config) if consumer_config else None,
        create_consumer=create_consumer,
        max_failures=max_failures,
        ordered_by=ordered_by,
        dead_letters=dead_letters,
        even_if_held=True,
    )
    check_duration("wait", wait)
    check_duration("longest_hold", longest_hold, timedelta(seconds=1))
    check_missing(missing)
    check_partitions(consumer, subject, asset.get("partitions_def"))
    policy = asset.get("backfill_policy")
    if subject is not None and policy is not None and policy.max_partitions_per_run != 1:
        remedy = "each partition has a consumer, so a run takes from one; give BackfillPolicy.multi_run(1)"
        raise InvalidValue("backfill_policy", policy, remedy)

    def materialize(context: dg.OpExecutionContext, jetstream: JetStreamResource, call: Any, **_: Any) -> Iterator[Any]:
        wanted = replace(taking, owner=runs.owner(context), predecessors=runs.predecessors(context))
        if subject is not None:
            wanted = of_partition(wanted, subject, context.partition_key)  # of a range, Dagster raises an error
        before = earlier.settled(context, jetstream)
        claims = jetstream.take(context, wanted, wait) if before is None else []
        if not claims:
            if before is not None:
                yield from earlier.again(context, *before)
            else:
                of_period = f" that were stored before {wanted.until}" if wanted.until else ""
                said = "no messages of stream %s, consumer %s,%s arrived within %g s, so the asset is not materialized"
                context.log.info(said, stream, wanted.consumer, of_period, wait.total_seconds())
            for check in context.op_def.outs.keys() - {"result"}:
                yield dg.Output(None, check)  # without an evaluation: Dagster requires an output of each check
            return
        if others := len(claims) - 1:
            context.log.info("%d more claims were taken, which the next runs will take over", others)
        of_hold = {"longest_hold": longest_hold, "dead_letters": dead_letters, "missing": missing}
        options = {"connection": resource, **of_hold}
        with jetstream.holding(context, claims[0], **options) as held:
            required: set[Any] = {*context.selected_asset_check_keys, *(["result"] if output_required else [])}
            work = partial(_materialized, call, held)
            yield from worked(context, jetstream, held, work, required=required)

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        options = with_resource(asset, resource)
        inner = compute(function, materialize, dg.AssetExecutionContext, resource, own=("claim",), options=options)
        asset_of: dg.AssetsDefinition = dg.asset(check_specs=check_specs, output_required=False, **options)(inner)
        return asset_of

    return decorate


def checked(*, until: datetime | str | None = None, **parameters: Any) -> Taking:
    """Return a taking whose owner is filled in by the step. The rules for its consumer are checked, too, except for the
    shortest ``ack_wait``, which only the resource knows.

    Raises:
        ConsumerUnsuitable: ``consumer_config`` breaks a rule.
        InvalidValue: a parameter is invalid.
    """
    try:
        end = None if until is None else instant(until)
    except ValueError as error:
        raise InvalidValue("until", until, str(error)) from None
    made = Taking(owner=("dagster",), until=end, **parameters)
    check_config(made.consumer, made.consumer_config, max_messages=made.max_messages, shortest_ack_wait=timedelta())
    if made.ordered_by is not None:
        OrderKey.parse(made.ordered_by).check_config(made.consumer, made.consumer_config, made.max_messages)
    return made


def _materialized(call: Callable[[HeldClaim], Any], held: HeldClaim) -> Any:
    """Call the function. If it returns nothing, it has materialized the asset itself."""
    result = call(held)
    return dg.MaterializeResult() if result is None else result
