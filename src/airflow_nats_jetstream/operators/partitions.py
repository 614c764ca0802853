# SPDX-License-Identifier: Apache-2.0
"""The operator that divides a stream into partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_nats_jetstream.dag.mapping import MESSAGES
from airflow_nats_jetstream.operators.fields import consumer_config as checked_config
from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.template import absent, templated, whole_number, yes_or_no

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_handoff.rules.partitions import Partitions


class JetStreamPartitionStreamOperator(StreamOperator):
    """Divide the messages of a stream by a key, with a consumer for each partition, and return the names of the
    consumers, over which a pull sensor is mapped::

        where = {"stream": "ORDERS", "ordered_by": "{3}"}
        partitions = JetStreamPartitionStreamOperator(
            task_id="partitions", group="balances", subject="orders.*.*", partitions=8, **where
        )
        sensor = JetStreamPullSensor.partial(task_id="claims", soft_fail=True, **where)
        claims = sensor.expand(consumer=partitions.output)

    The server stores ``orders.7.paid`` as ``3.orders.7.paid`` from then on, in which 3 is the partition. The layout is
    that of the static partitioned consumer groups of orbit.go (``pcgroups``), so that both can share a stream.

    stream:           the name of the stream, which exists. (templated)
    group:            the beginning of the consumers' names: ``balances`` for ``balances-0``, ``balances-1``, ….
                      (templated)
    subject:          which messages are divided, as they are published: ``orders.*.*``. (templated)
    partitions:       the number of partitions. (templated)
    ordered_by:       the key, as the sensor has it: tokens of the stored subject, in which the partition is the first
                      one, such as ``{3}``; or ``subject``. (templated)
    max_messages:     the largest ``max_messages`` of the sensors. Default None: 10,000. (templated)
    consumer_config:  fields of the consumers. ``deliver_policy`` and ``opt_start_seq`` only matter when a consumer is
                      created. Default None: as the sensor creates them. (templated)
    change_number:    whether to change the number of partitions if the stream has another one: in several steps, each
                      of which begins when what was stored before it is processed. Each run takes the steps that are
                      possible, and returns the consumers from which to take now. Default False: another number is
                      refused.
    nats_conn_id:     the id of the Airflow connection. Default ``nats_default``. (templated)

    A second run changes nothing. What exists and differs is refused. ``dry_run`` prints what there is, and what would
    be created.

    Raises:
        InvalidValue: a value is invalid, or the server cannot divide messages so. Raised when the DAG is parsed, unless
            a value is templated.
        PartitionsUnsuitable: the stream is divided in another way or into another number of partitions, or contains
            messages that would be in no partition. The error names the field, its value and the remedy.
        ConsumerUnsuitable: a consumer breaks a rule for claims, or differs. The error names the field, its value and
            the remedy.
        StreamNotFound: the stream does not exist.
    """

    template_fields: Sequence[str] = (
        "stream",
        "group",
        "subject",
        "partitions",
        "ordered_by",
        "max_messages",
        "consumer_config",
        "nats_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"consumer_config": "json"}

    def __init__(
        self,
        *,
        group: str,
        subject: str,
        partitions: int | str,
        ordered_by: str,
        max_messages: int | str | None = None,
        consumer_config: Mapping[str, Any] | None = None,
        change_number: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group = group
        self.subject = subject
        self.partitions = partitions
        self.ordered_by = ordered_by
        self.max_messages = max_messages
        self.consumer_config = consumer_config
        self.change_number = yes_or_no("change_number", change_number)
        values = [self.stream, group, subject, partitions, ordered_by, max_messages, consumer_config]
        if not templated(values):
            self._layout()

    def _layout(self) -> tuple[Partitions, dict[str, Any]]:
        """Return the layout, and the other parameters of :func:`ensure_partitions`. Raises InvalidValue."""
        from jetstream_handoff.rules.partitions import Partitions

        layout = Partitions(
            stream=self.stream,
            group=self.group,
            subject=self.subject,
            partitions=whole_number("partitions", self.partitions),
            ordered_by=self.ordered_by,
        )
        config = checked_config(self.consumer_config) or {}
        most = MESSAGES if absent(self.max_messages) else whole_number("max_messages", self.max_messages)
        layout.check_consumers(config, most)
        return layout, {"max_messages": most, "consumer_config": config, "change_number": self.change_number}

    def execute(self, context: Context) -> list[str]:  # noqa: ARG002
        from jetstream_handoff.repair.partitioning import ensure_partitions

        layout, how = self._layout()
        made = self._run(lambda js: ensure_partitions(js, layout, **how))
        if made.waits_for:
            self.log.warning(
                "stream %s gets %d partitions in the next runs: before the next step, %s must be processed",
                self.stream,
                layout.partitions,
                ", ".join(made.waits_for),
            )
        names = ", ".join(made.consumers)
        self.log.info(
            "stream %s, consumers to take from: %s%s", self.stream, names, "" if made.changed else " (as before)"
        )
        return list(made.consumers)

    def dry_run(self) -> None:
        """Print what there is, and what :meth:`execute` would create."""
        from jetstream_handoff.repair.partitioning import plan

        layout, how = self._layout()
        self.log.info("%s", self._run(lambda js: plan(js, layout, **how)))
