# SPDX-License-Identifier: Apache-2.0
"""Conservation: every message that a consumer has delivered above its floor is unacknowledged, or done in the ledger.

If it is neither, the server has given up its delivery, and never delivers it again unless the consumer is reset. In the
other direction, every delivery that is acknowledged was in a claim that the ledger has seen. If it was not, its message
is acknowledged without a receipt (docs/handoff.md). No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client import requirements
from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import DeliveriesGivenUp
from jetstream_handoff.rules import ledger_mark

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.take.deliveries import Deliveries


UNRECEIPTED = (
    "messages of consumer %s, stream %s, among the sequences %s were acknowledged, but no claim in the ledger contains "
    "them: the ledger was restored from an older copy, was deleted or has lost its last writes, or another client "
    "acknowledges messages. committed() does not list them. Compare the output of the work with the stream; if some "
    "must be processed again, %s. This is reported for a week"
)
"""What it means that messages were acknowledged without the ledger, for the names of consumer and stream, the
sequences, and what :func:`again` returns for the first of them."""


def again(info: ConsumerInfo | None, first: int) -> str:
    """Return what makes the server deliver the messages from ``first`` on again, as the end of a sentence.

    info:  the consumer; with it, the server says whether it can reset one. None if it could not be read.
    """
    if info is None or requirements.RESET.met_by(info.config):
        return (
            f"reset the consumer to sequence {first}, which delivers them and all later messages again (in Airflow, "
            "with JetStreamResetConsumerOperator or on the page JetStream)"
        )
    return f"{instead_of_reset(first)} (this nats-server is older than 2.14 and cannot reset a consumer)"


def instead_of_reset(first: int) -> str:
    """Return what to do on a server that cannot reset a consumer.

    Deleting the consumer of a work queue removes no message, and the queue has room for no other one. On an interest
    stream it would remove what the consumer has not acknowledged, so that another one has to exist first.
    """
    return (
        f"take from another consumer, with deliver_policy='by_start_sequence' and opt_start_seq={first}; in a work "
        "queue, delete the consumer, and the next sensor creates it again"
    )


def given_up(record: Record | None, info: ConsumerInfo) -> Sequences:
    """Return the sequences among which are the messages that the server has given up; empty if there are none.

    The server does not say which messages were delivered, so sequences that the consumer's filter does not select, or
    that were deleted, are among them. If some are above the floor, those that it has passed and that are known not to
    be done are returned as well: a purge moves the floor over what was given up.

    record:  the consumer's record; None if there is none yet.
    info:    the consumer's INFO, which was requested after the record was read.
    """
    if not info.gave_up:
        return Sequences()
    delivered = Sequences.from_ranges([(_first(info), info.delivered)])
    if record is None:
        return delivered
    above = delivered - record.all_settled.sequences
    if not above or record.new_life(info) or not info.floor:
        return above
    return above | record.undone & Sequences.from_ranges([(1, info.floor)])


def unreceipted(record: Record | None, info: ConsumerInfo, ledger: str) -> Sequences:
    """Return the sequences among which are messages that are acknowledged although the ledger does not know it; empty
    if there are none.

    This happens when the ledger was restored from an older copy, was deleted, or has lost its last writes, and when
    another client acknowledges messages. Without the ledger's knowledge of them, only the acknowledgement floor shows
    that they were processed. Sequences that the consumer's filter does not select are among the returned ones.

    record, info:  as for :func:`given_up`.
    ledger:        the name of the ledger.
    """
    if not info.floor or not info.acknowledged:
        return Sequences()
    if record is None:
        ours = ledger != "" and ledger_mark.marked(info.config) == ledger
        return Sequences.from_ranges([(1, info.floor)]) if ours else Sequences()
    if record.new_life(info) or info.acknowledged <= record.seen:
        return Sequences()
    first = max(record.floor, record.candidate[0] if record.candidate else 0) + 1
    beyond = Sequences.from_ranges([(first, info.floor)]) if first <= info.floor else Sequences()
    return beyond - record.all_settled.sequences


def on_their_way(info: ConsumerInfo, batch: Deliveries | None = None) -> Sequences:
    """Return the sequences among which are all delivered messages that are not acknowledged.

    batch:  only those that were on their way before this batch was delivered; default: all.
    """
    last = info.delivered
    if batch is not None and batch.lowest_counter == info.acknowledged + 1:
        last = 0
    elif batch is not None and (new := batch.first_new) is not None:  # first deliveries have ascending sequences
        last = min(last, new - 1)
    first = _first(info)
    return Sequences.from_ranges([(first, last)] if info.counter and first <= last else [])


def _first(info: ConsumerInfo) -> int:
    """The first sequence that the consumer may have delivered and that is not acknowledged. Before its first
    acknowledgement, servers older than 2.14 have 0 as the floor of a consumer that begins later."""
    return max(info.floor + 1, int(info.config.get("opt_start_seq", 1)))


def overtaken(record: Record | None, info: ConsumerInfo) -> Sequences:
    """Return the sequences among which are deliveries that the floor has passed although no claim has contained them
    since the record began; empty if there are none. If their messages exist, they were acknowledged or given up.

    record, info:  as for :func:`given_up`.
    """
    if record is None or record.new_life(info) or not info.floor:
        return Sequences()
    return record.unclaimed & Sequences.from_ranges([(1, info.floor)])


def without_receipt(record: Record | None, info: ConsumerInfo | None, ledger: str, *, vanishing: bool) -> Sequences:
    """Return what a look reports: the messages that a take has noted as :func:`unreceipted`, and those that are so now.

    info:       as for :func:`given_up`; None if it could not be read.
    vanishing:  whether messages of the stream vanish by design. The server acknowledges such a message itself.
    """
    noted = record.unreceipted[0] if record and record.unreceipted else Sequences()
    return noted if info is None or vanishing else noted | unreceipted(record, info, ledger)


def check(stream: str, consumer: str, record: Record | None, info: ConsumerInfo, last: int) -> None:
    """Raise DeliveriesGivenUp if the server has given up deliveries of messages that are not done.

    It has not if more messages wait than the stream has behind the last delivery. Another client has then reset the
    consumer to sequence 1, and nats-server shows the previous counters (docs/handoff.md, What remains).

    stream, consumer:  the names, for the error.
    record, info:      as for :func:`given_up`.
    last:              the last sequence of the stream, which was requested after ``info``.
    """
    if (messages := given_up(record, info)) and info.pending <= max(0, last - info.delivered):
        raise DeliveriesGivenUp(stream, consumer, messages, again(info, messages.first))
