"""Consumers: our own reset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.client.errors import InvalidValue
from airflow_nats_jetstream.client.names import check_consumer_name, check_stream_name
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.stream import templated

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_nats_jetstream.client.context import JetStream
    from airflow_nats_jetstream.handoff.reset import Reset


class JetStreamResetConsumerOperator(BaseOperator):
    """Let a consumer that claims are taken from begin again, and have everything from there on processed again.

    stream, consumer:  the consumer. (templated)
    sequence:          the first stream sequence to be delivered again; by default everything that is not acknowledged,
                       or comes after something that is not. Never past what nobody processed. (templated)

    Open claims are superseded: attempts that hold them stop and cannot settle. What was done past the sequence is
    processed again, by new claims. Takes a few seconds, and fails instead of losing a message: while acknowledgements
    are unconfirmed, while claims go on being settled, or while another reset is under way.

    Returns ``{"stream", "consumer", "sequence", "superseded": [claim id, …], "forgotten": ranges, "pending"}``: the
    claims that were open, messages above the floor that were settled, and how many come now. ``dry_run`` prints it.

    Raises:
        InvalidValue: names or sequence; when the DAG is parsed, unless they are templated.
        ResetRefused, LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "sequence", "nats_conn_id")
    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"

    def __init__(
        self,
        *,
        stream: str,
        consumer: str,
        sequence: int | str | None = None,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.consumer = consumer
        self.sequence = sequence
        self.nats_conn_id = nats_conn_id
        if not templated([stream, consumer, sequence]):
            self._check()

    def _check(self) -> int | None:
        from airflow_nats_jetstream.handoff.reset import check_sequence

        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        if self.sequence in (None, "", "None"):
            return None
        try:
            return check_sequence(int(self.sequence) if isinstance(self.sequence, str) else self.sequence)
        except ValueError:
            raise InvalidValue("sequence", self.sequence, "give a whole number above 0, or none") from None

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from airflow_nats_jetstream.handoff.ledger import Ledger
        from airflow_nats_jetstream.handoff.reset import reset

        sequence = self._check()

        async def run(js: JetStream) -> Reset:
            return await reset(Ledger(js, self.stream, self.consumer), sequence)

        return _plain(JetStreamHook(self.nats_conn_id).run(run))

    def dry_run(self) -> None:
        """Print what :meth:`execute` would do now."""
        from airflow_nats_jetstream.handoff.ledger import Ledger
        from airflow_nats_jetstream.handoff.reset import plan

        sequence = self._check()

        async def run(js: JetStream) -> Reset:
            return await plan(Ledger(js, self.stream, self.consumer), sequence)

        self.log.info("would do: %s", _plain(JetStreamHook(self.nats_conn_id).run(run)))


def _plain(made: Reset) -> dict[str, Any]:
    return {**asdict(made), "superseded": list(made.superseded), "forgotten": made.forgotten.to_json()}
