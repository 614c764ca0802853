# SPDX-License-Identifier: Apache-2.0
"""The rules of the contract for consumers that claims are taken from, checked before anything is pulled."""

from __future__ import annotations

import difflib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from jetstream_client import config as configs
from jetstream_client import requirements
from jetstream_client.errors import (
    ApiError,
    ConsumerNameInUse,
    ConsumerNotFound,
    DirectGetDisabled,
    InvalidValue,
    JetStreamError,
)
from jetstream_client.times import nanoseconds
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.rules import lasting, ledger_mark, missing, replicas, storage
from jetstream_handoff.words import Words, words_of

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.stream import Stream

log = logging.getLogger(__name__)
NotFound = TypeVar("NotFound", bound=ApiError)

ACK_WAIT = timedelta(seconds=60)
"""The default and shortest ``ack_wait``. A failover took up to 8 s, and leases are renewed ``HEARTBEATS`` times per
``ack_wait``."""
RUNS = 4
"""How many runs can work, or wait for a retry, at the same time with the default ``max_ack_pending``."""


def check_config(
    consumer: str,
    config: object,
    *,
    max_messages: int,
    shortest_ack_wait: timedelta = ACK_WAIT,
    group: str | None = None,
) -> None:
    """Refuse a ``consumer_config`` that breaks a rule. No request is sent to the server, so that a pipeline can
    be checked when it is defined.

    group: the priority group that pulls will name.

    Raises:
        ConsumerUnsuitable: names the field that breaks a rule, its value and the remedy.
        InvalidValue: JetStream forbids a name or subject.
    """
    wanted = configs.check_consumer_config({} if config is None else config)
    for name in ("name", "durable_name"):
        if wanted.get(name, consumer) != consumer:
            remedy = f"the parameter 'consumer' is {consumer!r}; leave this field out"
            raise InvalidValue(f"consumer_config[{name!r}]", wanted[name], remedy)
    _check_rules(consumer, _defaults(consumer, max_messages) | wanted, max_messages, shortest_ack_wait)
    if "priority_groups" in wanted:
        _check_group(consumer, wanted, group)


async def ensure(
    stream: Stream,
    consumer: str,
    config: configs.Config | None,
    *,
    max_messages: int,
    shortest_ack_wait: timedelta,
    ledger: str,
    group: str | None = None,
    create: bool = True,
) -> ConsumerInfo:
    """Return the INFO of the consumer. Create the consumer if it does not exist, and mark it if it has no mark.

    ledger:  the name of the ledger that the consumer must belong to.
    group:   the priority group that pulls will name.
    create:  whether to create a consumer that does not exist. Otherwise that is an error, and nothing is created.

    Raises:
        ConsumerNotFound: the consumer does not exist, and ``create`` is False.
        WrongLedger: the consumer, or its mark in ``config``, belongs to another ledger.
        ConsumerUnsuitable: the consumer breaks a rule or differs from ``config``, or the server refuses to create it.
        StreamNotFound: the stream does not exist.
        DirectGetDisabled: the stream has no ``allow_direct``, so the messages of its claims could not be read.
        ServerTooOld: the stream's nats-server is older than 2.11, so that reading a claim would take ten seconds
            for each message.
    """
    wanted = configs.check_consumer_config(config or {})
    words = words_of(stream.js.settings)
    ledger_mark.check(stream.name, consumer, wanted, ledger, words)
    of_stream = (await stream.info()).config
    check_stream(stream.name, of_stream, words)
    if vanish := missing.warning(of_stream):
        log.warning("stream %s: %s", stream.name, vanish)
    handle = stream.consumer(consumer)
    try:
        info = await handle.info()
    except ConsumerNotFound as not_found:
        if not create:
            not_found.args = (f"{not_found}; or set create_consumer=True, with which the take creates it",)
            raise await with_close_names(not_found, consumer, stream.consumer_names()) from None
        complete = ledger_mark.with_mark(_defaults(consumer, max_messages) | wanted, ledger)
        _check_rules(consumer, complete, max_messages, shortest_ack_wait)
        _check_group(consumer, complete, group)
        created = False
        try:
            await stream.create_consumer(complete)
            created = True
        except ConsumerNameInUse:
            log.info("consumer %s of stream %s was created by another client in the meantime", consumer, stream.name)
        except ApiError as error:
            raise _refused(consumer, complete, error) from error
        info = await handle.info()
        if created:
            _tell_created(stream.name, consumer, info)
            if concern := storage.unbounded(of_stream):
                log.warning("stream %s, from which consumer %s takes: %s", stream.name, consumer, concern)
    ledger_mark.check(stream.name, consumer, info.config, ledger, words)
    differing = _differing(consumer, info.config, configs.difference(info.config, wanted))
    check_existing(stream.name, consumer, info.config, max_messages, shortest_ack_wait, group, differing)
    if concern := replicas.fewer(info.config, of_stream):
        log.warning("consumer %s of stream %s: %s", consumer, stream.name, concern)
    return await ledger_mark.ensure(stream.name, handle, info, ledger, words)


def check_existing(  # noqa: PLR0917 - the names, the configuration, and what it is checked for
    stream: str,
    consumer: str,
    config: configs.Config,
    max_messages: int,
    shortest_ack_wait: timedelta,
    group: str | None = None,
    differing: Iterable[ConsumerUnsuitable] = (),
) -> None:
    """Check a consumer's configuration, as the server reports it, against the rules for claims. A take does so at every
    look, because anybody who may do so can change a consumer.

    config:             the configuration in the consumer's INFO.
    max_messages:       the largest batch.
    shortest_ack_wait:  the shortest ``ack_wait`` that the connection allows.
    group:              the priority group that pulls name.
    differing:          what else is wrong with it.

    Raises:
        ConsumerUnsuitable: it breaks a rule. The remedy names the others that it breaks, too.
    """
    rules = _all_rules(consumer, config, max_messages, shortest_ack_wait, group)
    if broken := _together([*differing, *rules]):
        raise of_existing(broken, stream)


def _together(broken: list[ConsumerUnsuitable]) -> ConsumerUnsuitable | None:
    """Return one error for everything that is wrong with a consumer, with each field only once; None if nothing is
    wrong."""
    by_field: dict[str, ConsumerUnsuitable] = {}
    for each in broken:
        by_field.setdefault(each.rule, each)
    if not by_field:
        return None
    first, *others = by_field.values()
    more = "".join(f"; in addition, {each.rule}={each.value!r}: {each.remedy}" for each in others)
    return ConsumerUnsuitable(first.consumer, first.rule, first.value, f"{first.remedy}{more}")


def _tell_created(stream: str, consumer: str, info: ConsumerInfo) -> None:
    """Log that a consumer was created: if its name was mistyped, all messages are processed once more."""
    log.warning(
        "created consumer %s of stream %s, because it did not exist: it begins at sequence %d (deliver_policy %s), and "
        "%d messages wait for it. If its name is wrong, delete it; with create_consumer=False, a missing consumer is "
        "an error",
        consumer,
        stream,
        info.delivered + 1,  # before 2.14, the floor of a new consumer is 0
        info.config.get("deliver_policy", "all"),
        info.pending,
    )


async def with_close_names(error: NotFound, name: str, names: AsyncIterator[str]) -> NotFound:
    """Add to the error for a name that does not exist which existing names are similar.

    name:   the name that does not exist.
    names:  the existing names. If they cannot be listed, the error stays as it is.
    """
    with suppress(JetStreamError):
        if close := difflib.get_close_matches(name, [each async for each in names]):
            error.args = (f"{error}. Did you mean {' or '.join(map(repr, close))}?",)
    return error


def check_stream(name: str, config: Mapping[str, Any], words: Words) -> None:
    """Raise DirectGetDisabled or ServerTooOld for a stream from which the messages of claims could not be read.

    config:  the configuration in the stream's INFO.
    words:   the words of the connection.
    """
    requirements.BATCHED_DIRECT_GET.check_answer(config)
    if not config.get("allow_direct"):
        raise DirectGetDisabled(name, words)


def of_existing(unsuitable: ConsumerUnsuitable, stream: str) -> ConsumerUnsuitable:
    """Return the error of an existing consumer, with a remedy that also says how to change it."""
    if unsuitable.rule in lasting.FIXED:
        return unsuitable
    remedy = (
        f"{unsuitable.remedy}. To change the consumer, which already exists in stream {stream!r}, use "
        "`nats consumer edit` (in Airflow, also JetStreamCreateConsumerOperator; in Dagster, also "
        "JetStreamResource.ensure_consumer()); or name a new consumer, which the take creates"
    )
    return ConsumerUnsuitable(unsuitable.consumer, unsuitable.rule, unsuitable.value, remedy)


_EITHER = {"filter_subject": "filter_subjects", "filter_subjects": "filter_subject"}
"""Each field of which a consumer has only one, and the other one."""


def _differing(consumer: str, config: configs.Config, changes: configs.Difference) -> Iterator[ConsumerUnsuitable]:
    """Yield an error for the first field that differs from ``consumer_config``. It names the others, too.

    config:   the configuration in the consumer's INFO.
    changes:  the differences.
    """
    for field, (_, asked) in changes.items():
        there = _named(field, config)
        wanted = repr(asked) if there == field else f"{field}={asked!r} instead"
        remedy = f"consumer_config contains {wanted} (all differences: {configs.describe(changes)})"
        yield ConsumerUnsuitable(consumer, there, config.get(there), remedy)
        return


def _named(field: str, config: configs.Config) -> str:
    """Return the field that a configuration has: ``filter_subjects`` if it has that instead of ``filter_subject``."""
    other = _EITHER.get(field, field)
    return other if config.get(other) and not config.get(field) else field


def _defaults(consumer: str, max_messages: int) -> dict[str, Any]:
    return {
        "durable_name": consumer,
        "name": consumer,
        "ack_policy": "explicit",
        "ack_wait": nanoseconds(ACK_WAIT),
        "max_deliver": -1,
        "max_ack_pending": RUNS * max_messages,
        "headers_only": True,  # a claim needs no payload, and the header Nats-Msg-Size tells its size
    }


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "deliver_subject": (bool, "leave it out, because claims need a pull consumer"),
    "ack_policy": (
        lambda policy: policy != "explicit",
        "it must be 'explicit', because any other policy acknowledges messages that were not processed",
    ),
    "backoff": (bool, "it must be absent, because it shortens the lease of a claim"),
}
"""For each field of a configuration: a function that returns whether a value breaks the rule, and the remedy."""


def _check_rules(consumer: str, config: configs.Config, max_messages: int, shortest_ack_wait: timedelta) -> None:
    if broken := _together([*broken_rules(consumer, config, max_messages, shortest_ack_wait)]):
        raise broken


def _all_rules(
    consumer: str, config: configs.Config, max_messages: int, shortest_ack_wait: timedelta, group: str | None
) -> Iterator[ConsumerUnsuitable]:
    yield from broken_rules(consumer, config, max_messages, shortest_ack_wait)
    try:
        _check_group(consumer, config, group)
    except ConsumerUnsuitable as of_group:
        yield of_group


def broken_rules(
    consumer: str, config: configs.Config, max_messages: int, shortest_ack_wait: timedelta
) -> Iterator[ConsumerUnsuitable]:
    """Yield an error for each rule for claims that a consumer's configuration breaks, beginning with those by which it
    lasts (:mod:`.lasting`)."""

    def broken(rule: str, remedy: str) -> ConsumerUnsuitable:
        return ConsumerUnsuitable(consumer, rule, config.get(rule), remedy)

    for number in ("max_deliver", "ack_wait", "max_ack_pending", "max_batch"):
        if type(config.get(number, 0)) is not int:
            yield broken(number, "it must be a whole number; a duration is a timedelta, or a number of nanoseconds")
            return
    for rule, remedy in lasting.broken_rules(config):
        yield broken(rule, remedy)
    for rule, (breaks, remedy) in _RULES.items():
        if breaks(config.get(rule)):
            yield broken(rule, remedy)
    shortest = nanoseconds(shortest_ack_wait)
    if (ack_wait := config.get("ack_wait", 30 * 10**9)) < shortest:
        least = f"timedelta(seconds={shortest_ack_wait.total_seconds():g})"
        yield broken("ack_wait", f"{ack_wait / 1e9:g} s are shorter than a failover may take; set at least {least}")
    batch = f"max_messages={max_messages}"
    if 0 < config.get("max_batch", 0) < max_messages:
        remedy = f"the server would refuse pull requests with {batch}; set {max_messages} or more, or leave it out"
        yield broken("max_batch", remedy)
    allowed = config.get("max_ack_pending", 1000)
    if 0 < allowed < max_messages:
        remedy = (
            f"a batch of {batch} would never be complete; set it to {max_messages} times the number of runs that work "
            "at the same time, or to -1 (no limit)"
        )
        yield broken("max_ack_pending", remedy)


def _check_group(consumer: str, config: configs.Config, group: str | None) -> None:
    groups = config.get("priority_groups") or []
    if group is None and groups:
        remedy = "pull requests must name one of these groups; set priority=Priority(group=…)"
        raise ConsumerUnsuitable(consumer, "priority_groups", groups, remedy)
    if group is not None and group not in groups:
        remedy = (
            f"the group {group!r}, which 'priority' names, is not in this list; correct 'priority' or priority_groups"
        )
        raise ConsumerUnsuitable(consumer, "priority_groups", groups, remedy)


_WORK_QUEUE = (
    "each message of a work-queue stream goes to one consumer, and another consumer already receives {}; take "
    "from that consumer, or give both consumers filters that do not overlap"
)
# Refusals to create a consumer (nats-server's ``server/errors.json``): the field at fault, and the remedy.
_REFUSED = {
    10099: ("filter_subject", _WORK_QUEUE.format("messages of this stream")),
    10100: ("filter_subject", _WORK_QUEUE.format("some of these messages")),
    10101: (
        "deliver_policy",
        "a work-queue stream delivers all its messages; leave deliver_policy out of consumer_config",
    ),
    10121: (
        "max_ack_pending",
        "set a smaller max_ack_pending in consumer_config, and a max_messages that does not exceed it",
    ),
    10026: (
        "name",
        "delete an unused consumer (`nats consumer ls` lists all), or raise max_consumers of the stream or the account",
    ),
}


def _refused(consumer: str, config: configs.Config, error: ApiError) -> JetStreamError:
    """Return an error for the server's refusal to create a consumer, with the field at fault and the remedy."""
    if error.err_code not in _REFUSED:
        return error
    field, remedy = _REFUSED[error.err_code]
    field = _named(field, config)
    return ConsumerUnsuitable(consumer, field, config.get(field), f"the server says {error.description!r}; {remedy}")
