# SPDX-License-Identifier: Apache-2.0
"""The options of reading with ``format("jetstream")``, checked before Spark plans anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jetstream_arrow.columns import OBJECT_ERROR
from jetstream_arrow.reading import AUTO, CONSUMER, DIRECT
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_filter, check_stream_name
from jetstream_client.stores.reference import MAX_SIZE, Objects
from jetstream_client.wire.settings import ConnectionSettings
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ClaimInvalid
from jetstream_handoff.ledger.reservation import is_reader_id
from jetstream_handoff.ledger.skipped import split_attempt
from jetstream_handoff.rules.missing import Missing, check_missing
from pyspark_jetstream import offsets
from pyspark_jetstream.offsets import EARLIEST, LATEST, Before, Time

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_jetstream.offsets import Offset

_SECRETS = ("user", "password", "token", "nkey", "seed", "creds", "secret", "tls_private_key")
NO_TABLE = (
    "this cannot be a table, because Spark passes no options of a table to a data source in Python, so nothing could "
    "read or write it; use CREATE TEMPORARY VIEW … USING jetstream OPTIONS (…), or a DataFrame"
)
_MOST_OFFSETS = 2**31 - 1
MOST_CLAIMED = 100_000
"""The largest number of messages in a micro-batch of a query with the option ``consumer``, and the default."""
_WITHOUT_CONSUMER = {
    "claim": "a claim is read in a batch",
    "subjects": "the consumer's filters select the messages",
    "startingOffsets": "the consumer's deliver_policy says where it begins",
    "startingTimestamp": "the consumer's deliver_policy says where it begins",
    "minOffsetsPerTrigger": "a micro-batch begins with the messages that wait",
    "maxTriggerDelay": "a micro-batch begins with the messages that wait",
    "missing": "a message of a micro-batch that no longer exists is an error",
    "failOnDataLoss": "a message of a micro-batch that no longer exists is an error",
}
"""Options that cannot be combined with ``consumer``, and why."""
_MOST_PARTITIONS = 100_000  # each partition is a task for Spark's scheduler
_KNOWN = (
    "servers",
    "connection",
    "stream",
    "subjects",
    "claim",
    "consumer",
    "replaces",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "readMode",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "missing",
    "attempt",
    "failOnDataLoss",
    "objects",
    "maxObjectSize",
)


@dataclass(frozen=True)
class Place:
    """A stream, and the servers or the connection through which it is reached.

    learned:  the servers that a server has named (:meth:`ConnectionSettings.learn`). Options are sent to the executors,
              and this goes with them, so that they also reach the stream when a configured server has left.

    Raises:
        InvalidValue: neither or both of ``servers`` and ``connection`` are given, or an address is invalid.
    """

    stream: str
    servers: str | None
    connection: str | None
    learned: dict[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=dict, kw_only=True, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if (self.servers is None) == (self.connection is None):
            remedy = "give exactly one of the options 'servers' and 'connection'"
            raise InvalidValue("servers", self.servers and "…", remedy)
        if self.servers is not None:
            ConnectionSettings(servers=self.servers)

    def settings(self) -> ConnectionSettings:
        """Return the settings, on the driver and on executors. Raises InvalidValue if the environment does not contain
        the connection."""
        if self.connection is not None:
            return replace(ConnectionSettings.from_environment(self.connection), learned=self.learned)
        return ConnectionSettings(servers=self.servers or "", learned=self.learned)


@dataclass(frozen=True)
class Options(Place):
    """The options of reading.

    servers:          addresses of the servers, without user information. Give either this or ``connection``.
    connection:       the name of a connection whose settings are in the environment.
    stream:           the name of the stream; with a claim the default is the claim's stream.
    subjects:         subject filters, separated by commas, for example ``orders.*.new``. With one filter, the server
                      sends only messages that match it. With several filters, it does so where a consumer reads and the
                      filters do not overlap. Elsewhere Spark's workers read all messages, and drop the others.
    claim:            the JSON of a claim. Exactly its messages are read.
    consumer:         in a streaming query, the name of the consumer whose messages are read, and acknowledged when
                      their micro-batch is committed (:mod:`.consumer_reader`). It is created if it does not exist.
    replaces:         with a consumer, the id of the reader whose place a new query takes, because its checkpoint is
                      lost.
    startingOffsets:  where to begin: ``earliest`` (default of a batch), ``latest`` (default of a new streaming query),
                      a sequence or a time (RFC 3339), inclusive.
    endingOffsets:    where a batch ends: ``latest`` (default), a sequence or a time, inclusive.
    startingTimestamp, endingTimestamp: instead of the two: the period whose messages are read. Its start is inclusive
                      and its end exclusive, so each message is in exactly one of two periods that follow each other.
                      Both are times by the server's clock, as RFC 3339 or as a ``datetime`` with a time zone; the end
                      is for batches only, and not in the future.
    minPartitions:    the number of partitions, unless there are fewer sequences to read; default: the number of the
                      driver's cores, but in a streaming query at most one for each 10,000 sequences (rounded up).
    readMode:         ``direct`` (direct get), ``consumer`` (an ephemeral consumer without acknowledgements), or
                      ``auto`` (default): ``consumer`` where that is faster and the stream and the permissions allow it.
    maxOffsetsPerTrigger: the largest number of sequences in a micro-batch of a streaming query; default: all that are
                      available, but with a consumer 100,000, which is then also the most.
    minOffsetsPerTrigger: the smallest number of sequences for which a micro-batch begins; default: 1.
    maxTriggerDelay:  with ``minOffsetsPerTrigger``, how long the oldest message that was not read waits for others, by
                      the server's clock since the stream stored it: a number and ``s``, ``m``, ``h`` or ``d``. Default
                      ``15m``. With the trigger ``availableNow``, neither of the two has an effect.
    missing:          what to do if messages that should be read no longer exist: ``error`` (default) fails; ``skip``
                      reads the others, and logs the sequences of the missing ones. With a claim, its receipt names
                      them, too; this needs ``attempt`` and ``connection``.
    attempt:          with a claim and ``missing=skip``, the name of the attempt that holds the claim (``attempt_id``).
    failOnDataLoss:   ``true`` (default), or ``false``, which implies ``missing=skip``. A streaming query then also
                      continues, with a warning, if its stream was recreated, or restored from an older copy.
    objects:          the name of the object store with the payloads of messages that refer to an object. The column
                      ``object_error`` then says why an object cannot be read. Default: these messages are read as they
                      are.
    maxObjectSize:    the largest object that is read, in bytes. Default 64 MiB.
    """

    subjects: tuple[str, ...] = ()
    claim: Claim | None = None
    starting: Offset | None = None
    ending: Offset | None = None
    min_partitions: int | None = None
    read_mode: str = AUTO
    max_offsets: int | None = None
    missing: Missing = "error"
    token: str = ""
    fail_on_data_loss: bool = True
    min_offsets: int | None = None
    max_delay: int = 0  # nanoseconds
    objects: Objects | None = None
    consumer: str | None = None
    replaces: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Read the options. Raises InvalidValue, which names the option, its value, and what to do."""
        given = {option_name(name, _KNOWN): value for name, value in options.items()}
        claim = _claim(given["claim"]) if "claim" in given else None
        consumer, replaces = _consumer(given)
        stream = given.get("stream", claim.stream if claim else None)
        if stream is None:
            remedy = "set the option 'stream' to the name of the stream to read"
            raise InvalidValue(
                "stream", None, remedy if given else f"{remedy}. If you have used CREATE TABLE: {NO_TABLE}"
            )
        check_stream_name(stream)
        if claim and stream != claim.stream:
            remedy = f"the claim belongs to stream {claim.stream!r}; leave the option 'stream' out"
            raise InvalidValue("stream", stream, remedy)
        for name in ("subjects", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
            if claim and name in given:
                raise InvalidValue(name, given[name], "the claim already defines what to read; leave this option out")
        if claim and "failOnDataLoss" in given:
            remedy = "for a claim, use the option 'missing' instead; leave this option out"
            raise InvalidValue("failOnDataLoss", given["failOnDataLoss"], remedy)
        fail_on_data_loss = one_of("failOnDataLoss", given.get("failOnDataLoss", "true"), ("true", "false")) == "true"
        subjects = given.get("subjects", "")
        starting = _end("starting", given, Time)
        ending = _end("ending", given, Before)
        offsets.check_order(starting, ending, given)
        most, least = (
            _positive(name, given.get(name), MOST_CLAIMED if consumer else _MOST_OFFSETS)
            for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")
        )
        if most and least and least > most:
            raise InvalidValue("minOffsetsPerTrigger", least, f"give at most maxOffsetsPerTrigger={most}")
        if "maxTriggerDelay" in given and least is None:
            remedy = "this limits the wait for minOffsetsPerTrigger; give both, or neither"
            raise InvalidValue("maxTriggerDelay", given["maxTriggerDelay"][:40], remedy)
        return cls(
            str(stream),
            given.get("servers"),
            given.get("connection"),
            tuple(check_filter(each.strip(), "subjects") for each in subjects.split(",")) if subjects else (),
            claim,
            starting,
            ending,
            _positive("minPartitions", given.get("minPartitions"), _MOST_PARTITIONS),
            one_of("readMode", given.get("readMode", AUTO), (AUTO, DIRECT, CONSUMER)),
            most,
            _missing(given, fail_on_data_loss=fail_on_data_loss),
            _token(given, claim),
            fail_on_data_loss,
            least,
            _delay(given.get("maxTriggerDelay", "15m")),
            _objects(given),
            consumer,
            replaces,
        )

    @property
    def filter(self) -> str | None:
        """The subject filter that direct get applies; None if ``subjects`` contains no filter or several."""
        return self.subjects[0] if len(self.subjects) == 1 else None

    @property
    def limits(self) -> dict[str, int]:
        """The options that limit micro-batches, as far as they were given."""
        limits = {"maxOffsetsPerTrigger": self.max_offsets, "minOffsetsPerTrigger": self.min_offsets}
        return {name: value for name, value in limits.items() if value is not None}

    def check_batch(self) -> None:
        """Raise InvalidValue for options that are allowed only in a streaming query, and for a batch that would be
        empty."""
        if self.consumer is not None:
            remedy = (
                "a batch has no checkpoint that says when its messages may be acknowledged; use spark.readStream, with "
                "the trigger availableNow for a job that ends, or read a claim"
            )
            raise InvalidValue("consumer", self.consumer, remedy)
        for name, limit in self.limits.items():
            remedy = "this limits the micro-batches of spark.readStream; leave it out of spark.read"
            raise InvalidValue(name, limit, remedy)
        if self.starting == LATEST:
            remedy = "the batch would be empty; give 'earliest', a sequence or a time"
            raise InvalidValue("startingOffsets", LATEST, remedy)
        if self.ending == EARLIEST:
            raise InvalidValue(
                "endingOffsets", EARLIEST, "the batch would be empty; give 'latest', a sequence or a time"
            )

    def check_streaming(self) -> None:
        """Raise InvalidValue for options that are allowed only in a batch."""
        if self.claim is not None:
            raise InvalidValue("claim", self.claim.id, "a claim is read in a batch; use spark.read")
        if self.ending is not None:
            remedy = "a streaming query has no end; to stop at the stream's current end, use the trigger availableNow"
            name = "endingTimestamp" if isinstance(self.ending, Before) else "endingOffsets"
            raise InvalidValue(name, str(getattr(self.ending, "rfc3339", self.ending)), remedy)


def check_schema(schema: StructType, columns: Mapping[str, str], *, objects: bool) -> None:
    """Check that a reader's schema has only known columns, of the right types, and those that objects need. Raises
    InvalidValue."""
    lacking = {"data", OBJECT_ERROR}.difference(schema.fieldNames()) if objects else set()
    if lacking:
        remedy = "with the option 'objects', the schema needs the columns data and object_error; add them"
        raise InvalidValue("schema", ", ".join(schema.fieldNames()), remedy)
    for each in schema.fields:
        kind = each.dataType.simpleString()
        if columns.get(each.name) != kind:
            known = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            problem = f"no column has this name and type; the columns are {known}"
            raise InvalidValue("schema", f"{each.name} {kind}", problem)


def option_name(option: str, names: Sequence[str]) -> str:
    """Return the known spelling of an option, which Spark may pass in lower case. Raises InvalidValue for an unknown
    option."""
    for known in names:
        if option.lower() == known.lower():
            return known
    if any(secret in option.lower() for secret in _SECRETS):
        remedy = "Spark shows options in plans, so credentials must not be options; use the option 'connection'"
        raise InvalidValue("option", option, remedy)
    raise InvalidValue("option", option, f"there is no such option; the options are {', '.join(names)}")


def _consumer(given: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the values of ``consumer`` and ``replaces``."""
    consumer, replaces = given.get("consumer"), given.get("replaces", "")
    if consumer is None:
        if "replaces" in given:
            raise InvalidValue("replaces", replaces[:40], "it belongs to the option 'consumer'; leave it out")
        return None, ""
    for name, reason in _WITHOUT_CONSUMER.items():
        if name in given:
            raise InvalidValue(name, given[name][:40], f"leave it out with the option 'consumer': {reason}")
    if replaces and not is_reader_id(replaces):
        raise InvalidValue("replaces", replaces[:40], "give the id of a reader, as the error ConsumerReserved names it")
    return check_consumer_name(consumer), replaces


def _claim(text: str) -> Claim:
    try:
        return Claim.from_json(text)
    except ClaimInvalid as wrong:
        raise InvalidValue("claim", text[:40], str(wrong)) from None


def _end(which: str, given: Mapping[str, str], kind: type[Time]) -> Offset | None:
    """Return one end of what to read, which is an offset, or a time of a period."""
    offset, time = f"{which}Offsets", f"{which}Timestamp"
    if time in given:
        if offset in given:
            raise InvalidValue(time, given[time][:40], f"give either this or {offset}={given[offset][:40]}, not both")
        return offsets.period(time, given[time], kind)
    return offsets.parse(offset, given[offset]) if offset in given else None


def _objects(given: Mapping[str, str]) -> Objects | None:
    size = _positive("maxObjectSize", given.get("maxObjectSize"), 2**31 - 1)  # Spark's limit of a binary value
    if "objects" not in given:
        if size is not None:
            raise InvalidValue("maxObjectSize", size, "it belongs to the option 'objects'; leave it out")
        return None
    return Objects(given["objects"], size or MAX_SIZE)


def _missing(given: Mapping[str, str], *, fail_on_data_loss: bool) -> Missing:
    """Return the value of ``missing``. Its default follows ``failOnDataLoss``, and the two must not contradict each
    other."""
    missing = check_missing(given.get("missing", "error" if fail_on_data_loss else "skip").lower())
    if missing == "error" and not fail_on_data_loss:
        remedy = "failOnDataLoss=false implies missing=skip; leave one of the two options out"
        raise InvalidValue("missing", missing, remedy)
    return missing


def _token(given: Mapping[str, str], claim: Claim | None) -> str:
    """Return the token of the attempt under which skipped messages of a claim are named; empty if there is none."""
    attempt = given.get("attempt")
    if claim is None:
        if attempt is not None:
            raise InvalidValue("attempt", attempt[:60], "it belongs to the option 'claim'; leave it out")
        return ""
    if attempt is not None:
        token = split_attempt(attempt, claim.id)
    if given.get("missing", "error").lower() == "error":
        return "" if attempt is None else token
    if attempt is None:
        remedy = (
            "with missing=skip, give the option 'attempt': the attempt_id of the held claim, so that the claim's "
            "receipt names the skipped messages"
        )
        raise InvalidValue("attempt", None, remedy)
    if "connection" not in given:
        remedy = "with missing=skip, give the option 'connection' instead of 'servers': it names the claim's ledger"
        raise InvalidValue("connection", None, remedy)
    return token


def _positive(name: str, value: str | None, most: int) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) <= most):
        raise InvalidValue(name, value[:40], f"give a whole number from 1 to {most}")
    return int(value)


def _delay(value: str) -> int:
    """Return a duration such as ``15m`` in nanoseconds."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    if (found := re.fullmatch(r"([0-9]{1,6})([smhd])", value)) is None:
        raise InvalidValue("maxTriggerDelay", value[:40], "give a whole number and one of s, m, h and d, such as 15m")
    return int(found[1]) * units[found[2]] * 10**9


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return the value in lower case. Raises InvalidValue if it is not one of the known values."""
    if value.lower() not in known:
        raise InvalidValue(name, value[:40], f"give {', '.join(known[:-1])} or {known[-1]}")
    return value.lower()
