"""A message on a subject when a task or a run ends as it does, or misses its deadline."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.notifier import BaseNotifier

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.template import check_mapping, templated
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name, check_subject

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_client.publish.options import PublishOptions


class JetStreamNotifier(BaseNotifier):
    """Publish a message from ``on_failure_callback``, ``on_success_callback`` and their like, or from a deadline.

    subject:  where to; a stream must listen on it. What is put into it must be a subject's tokens. (templated)
    message:  a text, or any JSON value. By default what it is about: ``dag_id`` and ``run_id``, of a task's callback
              ``task_id``, ``map_index``, ``try_number`` and ``state``, of a DAG's ``reason``. (templated)
    headers:  name → text. (templated)
    msg_id:   the ``Nats-Msg-Id``, under which the stream stores the message once within its duplicate window. By
              default from run, task, map index, try, state, subject and ``message``: Airflow may call back twice for
              one failure, in the worker and in the DAG processor. What is tried again is told again. (templated)
    stream:   the stream that must store it; else WrongStream. Default: any. (templated)

    Raises:
        InvalidValue: when the DAG is parsed, for a subject, a stream or a message that cannot be published.
        JetStreamError: when it was not stored. Airflow writes that into the log, and the task's state is as it was.
    """

    template_fields: Sequence[str] = ("subject", "message", "headers", "msg_id", "stream", "nats_conn_id")

    def __init__(
        self,
        *,
        subject: str,
        message: Any = None,
        headers: Mapping[str, str] | None = None,
        msg_id: str | None = None,
        stream: str | None = None,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        context: Context | None = None,
    ) -> None:
        self.subject = subject
        self.message = message
        self.headers = headers
        self.msg_id = msg_id
        self.stream = stream
        self.nats_conn_id = nats_conn_id
        super().__init__(context)
        if not templated(subject):
            check_subject(subject)
        if stream is not None and not templated(stream):
            check_stream_name(stream)
        check_mapping("headers", headers or {}, "names to texts")
        _data(message)

    def __call__(self, *args: Any) -> None:
        """As every notifier, but on a copy: rendering is for good, and the DAG processor calls one object for many."""
        BaseNotifier.__call__(copy.copy(self), *args)

    def notify(self, context: Context) -> None:
        """Publish it, in a worker or in the DAG processor."""
        JetStreamHook(self.nats_conn_id).run(lambda js: self._publish(js, context))

    async def async_notify(self, context: Context) -> None:
        """Publish it, in the triggerer."""
        async with JetStreamHook(self.nats_conn_id).context() as js:
            await self._publish(js, context)

    async def _publish(self, js: JetStream, context: Context) -> None:
        from jetstream_client.publish.ids import MessageIds

        scope, about = _about(context)
        data = _data(about) if self.message is None else _data(self.message)
        identity = MessageIds(scope).next(self.subject, b"" if self.message is None else data)
        options: PublishOptions = {"msg_id": self.msg_id or identity}
        if self.stream:
            options["expected_stream"] = self.stream
        ack = await js.publish(self.subject, data, headers=self.headers or {}, **options)
        again = ", where it was before" if ack.duplicate else ""
        self.log.info("told %s: message %d of stream %s%s", self.subject, ack.seq, ack.stream, again)


def _data(message: Any) -> bytes:
    """Raises InvalidValue for what is neither a text nor JSON."""
    if isinstance(message, str):
        return message.encode()
    try:
        return json.dumps(message).encode()
    except (TypeError, ValueError) as error:
        raise InvalidValue("message", type(message).__name__, f"give a text or a JSON value: {error}") from None


def _about(context: Context) -> tuple[str, dict[str, Any]]:
    """What a callback is about: as the scope of its message's id, and as a message."""
    values: Mapping[str, Any] = context
    ti, run = values.get("ti"), values.get("dag_run")
    if ti is not None and "reason" not in values:  # a DAG's callback has a reason, and one of its task instances, too
        state = _state(ti)
        about = {
            "dag_id": ti.dag_id,
            "run_id": ti.run_id,
            "task_id": ti.task_id,
            "map_index": -1 if ti.map_index is None else ti.map_index,
            "try_number": ti.try_number,
        }
        # A try fails once, whether or not another one follows.
        return _scope(*about.values(), "failed" if state == "up_for_retry" else state), {**about, "state": state}
    if isinstance(run, Mapping):  # a deadline's
        deadline = values.get("deadline") or {}
        about = {"dag_id": run.get("dag_id"), "run_id": run.get("dag_run_id")}
        return _scope(*about.values(), deadline.get("id")), about
    about = {"dag_id": getattr(values.get("dag"), "dag_id", None), "run_id": values.get("run_id")}
    if "reason" in values:
        about["reason"] = values["reason"]
    return _scope(*about.values(), getattr(run, "clear_number", None)), about  # a run that is cleared ends again


def _scope(*names: object) -> str:
    return json.dumps(names, default=str)


def _state(ti: Any) -> str:
    """The DAG processor calls back for a task that died, and knows neither its state nor its start."""
    if ti.state is not None:
        return str(getattr(ti.state, "value", ti.state))
    return "running" if getattr(ti, "start_date", None) else "failed"
