# SPDX-License-Identifier: Apache-2.0
"""The operator that writes the messages of a claim to a table, without a function of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.claim_task import ClaimTask, check_on_settled
from airflow_nats_jetstream.signals import lineage
from airflow_nats_jetstream.tables import described_table
from airflow_nats_jetstream.template import absent, duration, known_duration, optional_number, templated
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.rules.missing import Missing, check_missing
from jetstream_tables.table import ExactTable
from pyspark_jetstream.to_table import NewColumns, ToTable

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from jetstream_arrow import SchemaRegistry
    from pyspark_jetstream.held_claim import HeldClaim

OnSettled = Literal["return", "fail"]
_ANY_TABLE = {"type": "delta", "uri": "/"}
"""Stands for a table that is known only when the task runs."""


class JetStreamToTableOperator(ClaimTask, BaseOperator):
    """Write the messages of a claim to a table that contains each message once, and settle the claim.

    The task reads the messages without Spark, decodes them exactly, and appends the chosen columns in one commit. What
    cannot be decoded becomes a dead letter with its reason. Whatever happens to this attempt or to others, each message
    is in the table once, or among the dead letters.

    claim:            the claim as the pull sensor returned it; map over it with ``expand``. (templated)
    table:            a :class:`~jetstream_tables.DeltaTable`, an :class:`~jetstream_tables.IcebergTable`, or that of
                      :func:`~airflow_nats_jetstream.tables.sql_table`. Or a mapping: ``{"type": "delta", "uri":
                      "s3://lake/orders"}``, ``{"type": "iceberg", "catalog": "prod", "name": "sales.orders"}``, or
                      ``{"type": "sql", "conn_id": "warehouse", "name": "orders"}``. The first task creates the table if
                      it does not exist. (templated)
    schema:           the schema of the payloads. For JSON the columns in Spark's DDL, such as ``"shop STRING NOT NULL,
                      amount DECIMAL(10, 2)"``, or a mapping of their names to types; for Avro the reader's schema as
                      JSON; for Protobuf a descriptor set as bytes. Default None: payloads are not
                      decoded, and the table gets ``message_columns`` only. (templated)
    format:           ``"json"`` (default), ``"avro"`` or ``"protobuf"``.
    decoding:         further parameters of :func:`jetstream_arrow.decoded`, by their names: ``compression``,
                      ``epoch_unit``, ``framing``, ``message``, ``options``, ``unknown_fields``, ``writer_schema``.
                      Default None: none. (templated)
    registry_conn_id: the id of an Airflow connection of type ``http`` to a schema registry. Default None: no registry.
                      (templated)
    columns:          the fields of the payload that become columns: a list of names, or a mapping of names of columns
                      to fields, in which ``customer.id`` is a field inside another. Default None: all fields.
                      (templated)
    message_columns:  those of ``stream``, ``subject``, ``headers`` and ``data`` that become columns, too; ``data`` only
                      without a schema. Default: none. (templated)
    new_columns:      ``"error"`` (default): columns that the table does not have are an error, and nothing is written.
                      ``"add"``: they are added to the table, and rows that are there have nulls in them. (templated)
    max_malformed:    a claim with more malformed messages fails, so that a wrong schema does not make dead letters of
                      all messages. Default None: any number of them become dead letters. (templated)
    objects:          the name of the object store with the payloads of messages that refer to an object. A message
                      whose object cannot be read is malformed. Default None: messages are read as they are. (templated)
    max_object_size:  the largest object that is read, in bytes. Default 64 MiB. (templated)
    on_settled:       what to do with a claim that is already settled, in a retry or a cleared task: ``"return"`` the
                      recorded value (default), or ``"fail"`` without retry. (templated)
    missing:          what to do with messages that the stream no longer contains. ``"error"`` (default): the task fails
                      without retry. ``"skip"``: the others are written, and the claim's receipt names the missing ones.
    longest_hold:     the longest time for which the claim is held, as a ``timedelta`` or an ISO 8601 string. Default 24
                      hours. (templated)
    dead_letters:     the name of the stream for malformed messages. It is created if it does not exist. Default None:
                      ``DEAD_<stream>``. (templated)
    nats_conn_id:     the id of the Airflow connection. Default ``nats_default``. (templated)

    The XCom and the value that is recorded with the settlement have ``table``, its name; ``rows``, the number of
    messages that were written; ``duplicates``, the number of those that were in the table already; ``malformed``, the
    number of dead letters; and ``version``, if the table has versions.

    Raises:
        InvalidValue: an invalid parameter, raised when the DAG is parsed, unless the value is templated.
        AirflowFailException: the claim is invalid, superseded, held by another attempt, or lost; messages of it no
            longer exist; or it is settled, and an earlier run of the task has written it to another table.
        TooManyMalformed: more messages are malformed than ``max_malformed``.
        TableError: the rows do not fit the table, or it cannot be written. A retry looks at the table first.
        BucketNotFound: the object store does not exist. Nothing was written or rejected.
        JetStreamError: another error of NATS, the ledger or the registry.
    """

    template_fields: Sequence[str] = (
        "claim",
        "table",
        "schema",
        "decoding",
        "registry_conn_id",
        "columns",
        "message_columns",
        "new_columns",
        "max_malformed",
        "objects",
        "max_object_size",
        "on_settled",
        "longest_hold",
        "dead_letters",
        "nats_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"claim": "json", "table": "json", "decoding": "json"}
    ui_color = "#34a574"
    get_openlineage_facets_on_complete = lineage.stored

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Map the operator. The scheduler does not call ``__init__``, so parameters are checked here."""
        _check(kwargs)
        return super().partial(**kwargs)

    def __init__(
        self,
        *,
        claim: Mapping[str, Any] | XComArg,
        table: ExactTable | Mapping[str, Any],
        schema: str | bytes | Mapping[str, str] | None = None,
        format: str = "json",  # noqa: A002 - as in jetstream_arrow.decoded
        decoding: Mapping[str, Any] | None = None,
        registry_conn_id: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        message_columns: Sequence[str] = (),
        new_columns: NewColumns | str = "error",
        max_malformed: int | str | None = None,
        objects: str | None = None,
        max_object_size: int | str | None = None,
        on_settled: OnSettled | str = "return",
        missing: Missing = "error",
        longest_hold: timedelta | str = LONGEST_HOLD,
        dead_letters: str | None = None,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.claim: Any = claim
        self.table = table
        self.schema = schema
        self.format = format
        self.decoding = decoding
        self.registry_conn_id = registry_conn_id
        self.columns = columns
        self.message_columns = message_columns
        self.new_columns = new_columns
        self.max_malformed = max_malformed
        self.objects = objects
        self.max_object_size = max_object_size
        self.on_settled = on_settled
        self.missing = missing
        self.longest_hold = known_duration("longest_hold", longest_hold)
        self.dead_letters = dead_letters
        self.nats_conn_id = nats_conn_id
        self.rows: int | None = None  # the number of rows written, once the task knows it
        _check(vars(self))

    def execute(self, context: Context) -> Any:
        self._check_on_settled()
        how = _how(vars(self), self._registry())
        value = self._outcome(partial(self._hold, how, context))
        self._check_recorded(value, described_table(self.table).name)
        return value

    def _check_recorded(self, value: Any, table: str) -> None:
        """Check that a claim that was already settled was written to this table. Raises AirflowFailException."""
        recorded = value.get("table", table) if isinstance(value, Mapping) else table
        if str(recorded).rstrip("/") != table.rstrip("/"):
            raise AirflowFailException(
                f"table: the claim is settled and was written to table {recorded} by an earlier run of this task; "
                f"nothing was written to table {table}. Name the earlier table again; or, to write the messages of the "
                "stream to the new one, too, take them with another consumer, or reset this one"
            )

    def _hold(self, how: ToTable, context: Context) -> Any:
        with JetStreamHook(self.nats_conn_id).holding(
            self.claim,
            try_number=context["ti"].try_number,
            longest_hold=duration("longest_hold", self.longest_hold),
            dead_letters=self.dead_letters or None,
            missing=self.missing,
        ) as held:
            self._held = held
            return self._settled(held, partial(self._store, how, held), context)

    def _store(self, how: ToTable, held: HeldClaim) -> dict[str, Any]:
        stored = how.store(held)
        self.rows = stored.rows
        return stored.to_json()

    def _registry(self) -> SchemaRegistry | None:
        if absent(self.registry_conn_id):
            return None
        from airflow.sdk.bases.hook import BaseHook

        from jetstream_arrow import SchemaRegistry

        connection = BaseHook.get_connection(str(self.registry_conn_id))
        host = connection.host or ""
        address = host if "://" in host else f"{connection.schema or 'https'}://{host}"
        if connection.port and urlsplit(address).port is None:
            address = f"{address.rstrip('/')}:{connection.port}"
        return SchemaRegistry(address, username=connection.login or None, password=connection.password or None)


def _check(given: Mapping[str, Any]) -> None:
    """Check the parameters that are known when the DAG is parsed. Raises InvalidValue."""
    own = {*JetStreamToTableOperator.template_fields, "format", "missing"} & given.keys()
    known = {name: given[name] for name in own if not templated(given[name])}
    check_missing(known.get("missing", "error"))
    check_on_settled(known.get("on_settled", "return"), ClaimTask.on_settled_choices)
    if known.get("dead_letters") is not None:
        check_stream_name(known["dead_letters"], "dead_letters")
    if "registry" in (known.get("decoding") or {}):
        remedy = "give registry_conn_id, the id of an Airflow connection, so that no DAG has the password"
        raise InvalidValue("decoding", "registry", remedy)
    if isinstance(table := known.get("table"), ExactTable) and templated(vars(table)):
        example = "{'type': 'delta', 'uri': 's3://{{ var.value.lake }}/orders'}"
        remedy = f"Airflow renders no template in {type(table).__name__}; give a mapping, such as {example}"
        raise InvalidValue("table", table.name, remedy)
    schema = known.get("schema")
    if not isinstance(schema, str | bytes | Mapping | None):  # Airflow would store another form of it for each parse
        remedy = "give the columns as a string or a mapping, such as {'shop': 'STRING NOT NULL'}, or a schema as bytes"
        raise InvalidValue("schema", type(schema), remedy)
    unknown = {"schema", "message_columns"} - known.keys()  # they are templated or mapped over
    if unknown and known.get("schema") is None and not known.get("message_columns"):
        known["schema"] = b""  # nothing is known of its columns
    if "objects" not in known:
        known.pop("max_object_size", None)
    _how({"table": _ANY_TABLE, **known}, None)


def _how(given: Mapping[str, Any], registry: SchemaRegistry | None) -> ToTable:
    schema = given.get("schema")
    return ToTable(
        table=described_table(given["table"]),
        schema=None if isinstance(schema, str) and absent(schema) else schema,
        format=given.get("format", "json"),
        decoding={**(given.get("decoding") or {}), **({"registry": registry} if registry is not None else {})},
        columns=None if isinstance(columns := given.get("columns"), str) and absent(columns) else columns,
        message_columns=given.get("message_columns") or (),
        new_columns=given.get("new_columns", "error"),
        max_malformed=optional_number("max_malformed", given.get("max_malformed"), 0),
        objects=None if absent(given.get("objects")) else given["objects"],
        max_object_size=optional_number("max_object_size", given.get("max_object_size")),
    )
