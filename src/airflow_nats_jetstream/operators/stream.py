"""Streams: create or update, purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.client.config import check_stream_config, describe, difference
from airflow_nats_jetstream.client.errors import InvalidValue, StreamNotFound
from airflow_nats_jetstream.client.names import check_filter, check_stream_name
from airflow_nats_jetstream.hooks import JetStreamHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_nats_jetstream.client.context import JetStream


def templated(value: Any) -> bool:
    """Whether a value is only known when the task runs: it has a template in it, or comes from another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(templated(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(templated(each) for each in value)
    return hasattr(value, "resolve")


class JetStreamCreateStreamOperator(BaseOperator):
    """Make a stream as wanted: create it, or change what differs and leave every other field as it is.

    config:  the server's own JSON, e.g. ``{"name": "ORDERS", "subjects": ["orders.>"]}``; durations as ``timedelta``
             or nanoseconds. (templated)

    Returns ``{"stream": name, "created": bool, "changed": [field, …]}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: a name or subject that JetStream forbids; when the DAG is parsed, unless it is templated.
        ApiError: the server's refusal.
    """

    template_fields: Sequence[str] = ("config", "nats_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}
    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"

    def __init__(
        self, *, config: Mapping[str, Any], nats_conn_id: str = JetStreamHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.nats_conn_id = nats_conn_id
        if not templated(config):
            check_stream_config(config)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        wanted = check_stream_config(self.config)
        _, changes = JetStreamHook(self.nats_conn_id).run(lambda js: js.create_or_update_stream(wanted))
        if changes is None:
            self.log.info("stream %s created", wanted["name"])
        elif changes:
            self.log.info("stream %s updated: %s", wanted["name"], describe(changes))
        else:
            self.log.info("stream %s is as wanted", wanted["name"])
        return {"stream": wanted["name"], "created": changes is None, "changed": sorted(changes or ())}

    def dry_run(self) -> None:
        """Print what :meth:`execute` would change."""
        wanted = check_stream_config(self.config)

        async def compare(js: JetStream) -> str:
            try:
                current = (await js.stream(wanted["name"]).info()).config
            except StreamNotFound:
                return "would be created"
            changes = difference(current, wanted)
            return f"would be updated: {describe(changes)}" if changes else "is as wanted"

        self.log.info("stream %s %s", wanted["name"], JetStreamHook(self.nats_conn_id).run(compare))


class JetStreamPurgeOperator(BaseOperator):
    """Remove messages from a stream; returns how many.

    subject:     only those that match this filter. (templated)
    sequence:    only those below it, not including it. (templated)
    keep:        all but the last so many. (templated)
    everything:  must be True to purge without any of the three.

    Raises:
        InvalidValue: when the DAG is parsed: both sequence and keep, 0 for either, or nothing and not ``everything``.
        StreamNotFound: there is no such stream.
    """

    template_fields: Sequence[str] = ("stream", "subject", "sequence", "keep", "nats_conn_id")
    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"

    def __init__(
        self,
        *,
        stream: str,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
        everything: bool = False,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.subject = subject
        self.sequence = sequence
        self.keep = keep
        self.everything = everything
        self.nats_conn_id = nats_conn_id
        if not templated([stream, subject, sequence, keep]):
            self._check()

    def _check(self) -> dict[str, Any]:
        check_stream_name(self.stream)
        numbers = {}
        for name in ("sequence", "keep"):
            value = getattr(self, name)
            try:
                numbers[name] = None if value in (None, "", "None") else int(value)
            except (TypeError, ValueError):
                raise InvalidValue(name, value, "give a whole number") from None
        subject = self.subject or None
        if subject is not None:
            check_filter(subject, "subject")
        if numbers["sequence"] is not None and numbers["keep"] is not None:
            raise InvalidValue("keep", numbers["keep"], "give sequence or keep, not both")
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise InvalidValue(name, number, "give 1 or more; the server takes 0 for everything")
        if self.everything and (subject is not None or set(numbers.values()) != {None}):
            raise InvalidValue("everything", True, "not together with subject, sequence or keep")
        if not self.everything and subject is None and set(numbers.values()) == {None}:
            raise InvalidValue("everything", False, "a purge of the whole stream needs everything=True")
        return {"subject": subject, **numbers}

    def execute(self, context: Context) -> int:  # noqa: ARG002
        which = self._check()
        purged = JetStreamHook(self.nats_conn_id).run(lambda js: js.stream(self.stream).purge(**which))
        self.log.info("stream %s: %d messages purged", self.stream, purged)
        return purged
