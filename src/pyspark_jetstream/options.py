"""The options of ``format("jetstream")``, checked before Spark plans anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_filter, check_stream_name
from jetstream_client.wire.settings import ConnectionSettings
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ClaimInvalid
from pyspark_jetstream import offsets
from pyspark_jetstream.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_jetstream.offsets import Offset

_SECRETS = ("user", "password", "token", "nkey", "seed", "creds", "secret", "tls_private_key")
AUTO, DIRECT, CONSUMER = "auto", "direct", "consumer"
_MOST_OFFSETS = 2**31 - 1
_MOST_PARTITIONS = 100_000  # each is a task for Spark's scheduler
_KNOWN = (
    "servers",
    "connection",
    "stream",
    "subjects",
    "claim",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "readMode",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
)


@dataclass(frozen=True)
class Place:
    """A stream, and the servers or the Airflow connection that lead to it. Raises InvalidValue unless it is one."""

    stream: str
    servers: str | None
    connection: str | None

    def __post_init__(self) -> None:
        if (self.servers is None) == (self.connection is None):
            remedy = "give the option servers or the option connection, one of them"
            raise InvalidValue("servers", self.servers and "…", remedy)
        if self.servers is not None:
            ConnectionSettings(servers=self.servers)

    def settings(self) -> ConnectionSettings:
        """On the driver and on executors. Raises InvalidValue when the environment lacks the connection."""
        if self.connection is not None:
            return ConnectionSettings.from_environment(self.connection)
        return ConnectionSettings(servers=self.servers or "")


@dataclass(frozen=True)
class Options(Place):
    """What to read.

    servers:          addresses, without user information; or
    connection:       the id of an Airflow connection whose settings are in the environment.
    stream:           the stream; with a claim it is the claim's.
    subjects:         filters, separated by commas, e.g. ``orders.*.new``. Of a single one the server sends only what
                      passes it; with several everything is read and dropped here.
    claim:            the JSON of a claim: exactly its messages are read, and a missing one is an error.
    startingOffsets:  ``earliest`` (a batch's default), ``latest`` (a new streaming query's default), a sequence or a
                      time (RFC 3339), inclusive.
    endingOffsets:    of a batch: ``latest`` (default), a sequence or a time, inclusive.
    minPartitions:    at least so many partitions; default: the driver's cores.
    readMode:         ``direct`` (direct get), ``consumer`` (an ephemeral one without acknowledgements), or ``auto``
                      (default): ``consumer`` where it is faster and the stream and this user's permissions allow it.
    maxOffsetsPerTrigger: of a streaming query: so many sequences in a micro-batch at most; default: all there are.
    failOnDataLoss:   ``true`` (default): what should be read and is gone is an error; ``false``: a warning.
    """

    subjects: tuple[str, ...] = ()
    claim: Claim | None = None
    starting: Offset | None = None
    ending: Offset | None = None
    min_partitions: int | None = None
    read_mode: str = AUTO
    max_offsets: int | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Raises InvalidValue: which option, its value, and what to do."""
        given = {option_name(name, _KNOWN): value for name, value in options.items()}
        claim = _claim(given["claim"]) if "claim" in given else None
        stream = given.get("stream", claim.stream if claim else None)
        check_stream_name(stream)
        if claim and stream != claim.stream:
            raise InvalidValue("stream", stream, f"the claim is of stream {claim.stream!r}: leave stream out")
        for name in ("subjects", "startingOffsets", "endingOffsets", "failOnDataLoss"):
            if claim and name in given:
                raise InvalidValue(name, given[name], "a claim says itself what to read: leave it out")
        subjects = given.get("subjects", "")
        starting, ending = (
            offsets.parse(name, given[name]) if name in given else None for name in ("startingOffsets", "endingOffsets")
        )
        if offsets.reversed_(starting, ending):
            raise InvalidValue("endingOffsets", given["endingOffsets"], f"not before {given['startingOffsets']}")
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
            _positive("maxOffsetsPerTrigger", given.get("maxOffsetsPerTrigger"), _MOST_OFFSETS),
            one_of("failOnDataLoss", given.get("failOnDataLoss", "true"), ("true", "false")) == "true",
        )

    @property
    def filter(self) -> str | None:
        """What the server can filter by."""
        return self.subjects[0] if len(self.subjects) == 1 else None

    def check_batch(self) -> None:
        """Raises InvalidValue for what only a streaming query has."""
        if self.max_offsets is not None:
            raise InvalidValue("maxOffsetsPerTrigger", self.max_offsets, "it bounds the batches of spark.readStream")
        if self.starting == LATEST:
            raise InvalidValue("startingOffsets", LATEST, "a batch would be empty: give earliest, a sequence or a time")
        if self.ending == EARLIEST:
            raise InvalidValue("endingOffsets", EARLIEST, "a batch would be empty: give latest, a sequence or a time")

    def check_streaming(self) -> None:
        """Raises InvalidValue for what only a batch has."""
        if self.claim is not None:
            raise InvalidValue("claim", self.claim.id, "a claim is a batch: read it with spark.read")
        if self.ending is not None:
            raise InvalidValue("endingOffsets", str(self.ending), "a stream has no end: use the trigger availableNow")


def check_schema(schema: StructType, columns: Mapping[str, str]) -> None:
    """A reader may ask for some of the columns. Raises InvalidValue for any other column or type."""
    for each in schema.fields:
        if columns.get(each.name) != each.dataType.simpleString():
            known = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise InvalidValue("schema", f"{each.name} {each.dataType.simpleString()}", f"the columns are {known}")


def option_name(option: str, names: Sequence[str]) -> str:
    """As it is known: Spark hands options on in lower case or as given. Raises InvalidValue for any other."""
    for known in names:
        if option.lower() == known.lower():
            return known
    if any(secret in option.lower() for secret in _SECRETS):
        remedy = "credentials are never an option, which Spark shows in plans: use the option connection"
        raise InvalidValue("option", option, remedy)
    raise InvalidValue("option", option, f"the options are {', '.join(names)}")


def _claim(text: str) -> Claim:
    try:
        return Claim.from_json(text)
    except ClaimInvalid as wrong:
        raise InvalidValue("claim", text[:40], str(wrong)) from None


def _positive(name: str, value: str | None, most: int) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) <= most):
        raise InvalidValue(name, value[:40], f"give a whole number from 1 to {most}")
    return int(value)


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """The value in lower case. Raises InvalidValue for another one than the known."""
    if value.lower() not in known:
        raise InvalidValue(name, value[:40], f"give {', '.join(known[:-1])} or {known[-1]}")
    return value.lower()
