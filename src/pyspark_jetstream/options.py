"""The options of ``format("jetstream")``, checked before Spark plans anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.client.errors import ClaimInvalid, InvalidValue
from airflow_nats_jetstream.client.names import check_stream_name
from airflow_nats_jetstream.client.settings import ConnectionSettings
from airflow_nats_jetstream.handoff.claim import Claim

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SECRETS = ("user", "password", "token", "nkey", "seed", "creds", "secret", "tls_private_key")
_LARGEST_SEQUENCE = 2**63 - 1  # the column is a long
_MOST_PARTITIONS = 100_000  # each is a task for Spark's scheduler
_KNOWN = ("servers", "connection", "stream", "claim", "startingOffsets", "endingOffsets", "minPartitions")


@dataclass(frozen=True)
class Options:
    """What to read.

    servers:          addresses, without user information; or
    connection:       the id of an Airflow connection whose settings are in the environment.
    stream:           the stream; with a claim it is the claim's.
    claim:            the JSON of a claim: exactly its messages are read, and a missing one is an error.
    startingOffsets:  ``earliest`` (default) or a sequence, inclusive.
    endingOffsets:    ``latest`` (default) or a sequence, inclusive.
    minPartitions:    at least so many partitions; default: the driver's cores.
    """

    stream: str
    servers: str | None = None
    connection: str | None = None
    claim: Claim | None = None
    starting: int | None = None
    ending: int | None = None
    min_partitions: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Raises InvalidValue: which option, its value, and what to do."""
        given = {_name(name): value for name, value in options.items()}
        servers, connection = given.get("servers"), given.get("connection")
        if (servers is None) == (connection is None):
            raise InvalidValue("servers", servers, "give the option servers or the option connection, one of them")
        if servers is not None:
            ConnectionSettings(servers=servers)
        claim = _claim(given["claim"]) if "claim" in given else None
        stream = given.get("stream", claim.stream if claim else None)
        check_stream_name(stream)
        if claim and stream != claim.stream:
            raise InvalidValue("stream", stream, f"the claim is of stream {claim.stream!r}: leave stream out")
        for name in ("startingOffsets", "endingOffsets"):
            if claim and name in given:
                raise InvalidValue(name, given[name], "a claim says itself what to read: leave it out")
        starting = _offset("startingOffsets", given.get("startingOffsets", "earliest"), "earliest")
        ending = _offset("endingOffsets", given.get("endingOffsets", "latest"), "latest")
        if starting and ending and starting > ending:
            raise InvalidValue("endingOffsets", ending, f"not before startingOffsets={starting}")
        partitions = None
        if "minPartitions" in given:
            remedy = f"give a whole number from 1 to {_MOST_PARTITIONS}"
            partitions = _positive("minPartitions", given["minPartitions"], remedy, _MOST_PARTITIONS)
        return cls(str(stream), servers, connection, claim, starting, ending, partitions)

    def settings(self) -> ConnectionSettings:
        """On the driver and on executors. Raises InvalidValue when the environment lacks the connection."""
        if self.connection is not None:
            return ConnectionSettings.from_environment(self.connection)
        return ConnectionSettings(servers=self.servers or "")


def check_schema(schema: StructType, columns: Mapping[str, str]) -> None:
    """A reader may ask for some of the columns. Raises InvalidValue for any other column or type."""
    for each in schema.fields:
        if columns.get(each.name) != each.dataType.simpleString():
            known = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise InvalidValue("schema", f"{each.name} {each.dataType.simpleString()}", f"the columns are {known}")


def claim_options(claim: Claim, servers: str | None, connection: str | None) -> dict[str, str]:
    """The options that read a claim."""
    where = {"servers": servers, "connection": connection}
    given = {name: value for name, value in where.items() if value is not None}
    return {**given, "claim": json.dumps(claim.to_json())}


def _name(option: str) -> str:
    """Spark hands options on in lower case or as given: their case does not matter."""
    for known in _KNOWN:
        if option.lower() == known.lower():
            return known
    if any(secret in option.lower() for secret in _SECRETS):
        remedy = "credentials are never an option, which Spark shows in plans: use the option connection"
        raise InvalidValue("option", option, remedy)
    raise InvalidValue("option", option, f"the options are {', '.join(_KNOWN)}")


def _claim(text: str) -> Claim:
    try:
        return Claim.from_json(text)
    except ClaimInvalid as wrong:
        raise InvalidValue("claim", text[:40], str(wrong)) from None


def _offset(name: str, value: str, word: str) -> int | None:
    return None if value == word else _positive(name, value, f"give {word} or a sequence of 1 or more")


def _positive(
    name: str, value: Any, remedy: str = "give a whole number of 1 or more", most: int = _LARGEST_SEQUENCE
) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if not 1 <= number <= most:
        raise InvalidValue(name, str(value)[:40], remedy)
    return number
