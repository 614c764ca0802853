# SPDX-License-Identifier: Apache-2.0
"""The notifier that publishes a message when a task or a run succeeds, fails or misses its deadline."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.notifier import BaseNotifier

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.payload import encoded
from airflow_nats_jetstream.template import check_mapping, templated
from jetstream_client.names import check_stream_name, check_subject

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_client.publish.options import PublishOptions


class JetStreamNotifier(BaseNotifier):
    """Publish a message from a callback such as ``on_failure_callback`` or ``on_success_callback``, or from a deadline.

    subject:       the subject to publish on. A stream must listen on it. A value that a template puts into the subject
                   must consist of valid subject tokens. (templated)
    message:       a string, or any JSON value. Default None: a mapping of ``dag_id`` and ``run_id``, with ``task_id``,
                   ``map_index``, ``try_number`` and ``state`` in a task's callback, and with ``reason`` in a DAG's.
                   (templated)
    headers:       a mapping of header names to strings. Default None. (templated)
    msg_id:        the ``Nats-Msg-Id``, with which the stream stores the message only once within its duplicate window.
                   Airflow can report one failure twice, in the worker and in the DAG processor. Default None: an id
                   made from run, task, map index, try, state, subject and ``message``, so that every try has a separate
                   notification. (templated)
    stream:        the name of the stream that must store the message. Default None: any stream. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)
    context:       Airflow's context; Airflow passes it.

    Raises:
        InvalidValue: a subject, stream, header or message that cannot be published. Raised when the DAG is parsed,
            unless the value is templated.
        WrongStream: a stream other than ``stream`` listens on the subject.
        JetStreamError: the message was not stored. Airflow logs this error, and the task keeps its state.
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
        check_mapping("headers", headers or {}, "header names to strings")
        encoded("message", message)

    def __call__(self, *args: Any) -> None:
        """Notify with a copy, because rendering changes a notifier, and the DAG processor calls one notifier for many
        tasks."""
        BaseNotifier.__call__(copy.copy(self), *args)

    def notify(self, context: Context) -> None:
        """Publish the message, in a worker or in the DAG processor.

        context:  Airflow's context of the task or run.
        """
        JetStreamHook(self.nats_conn_id).run(lambda js: self._publish(js, context))

    async def async_notify(self, context: Context) -> None:
        """Publish the message, in the triggerer.

        context:  Airflow's context of the task or run.
        """
        async with JetStreamHook(self.nats_conn_id).context() as js:
            await self._publish(js, context)

    async def _publish(self, js: JetStream, context: Context) -> None:
        from jetstream_client.publish.ids import MessageIds

        scope, about = _about(context)
        data = encoded("message", about if self.message is None else self.message)
        identity = MessageIds(scope).next(self.subject, b"" if self.message is None else data)
        options: PublishOptions = {"msg_id": self.msg_id or identity}
        if self.stream:
            options["expected_stream"] = self.stream
        ack = await js.publish(self.subject, data, headers=self.headers or {}, **options)
        again = ", which had already been stored" if ack.duplicate else ""
        self.log.info(
            "published a notification on %s: stream %s contains it as message %d%s",
            self.subject,
            ack.stream,
            ack.seq,
            again,
        )


def _about(context: Context) -> tuple[str, dict[str, Any]]:
    """Describe the task or run of a callback. Returns the scope of the message's id, and the default message."""
    values: Mapping[str, Any] = context
    ti, run = values.get("ti"), values.get("dag_run")
    if ti is not None and "reason" not in values:  # a DAG's callback has both a task instance and a reason
        state = _state(ti)
        about = {
            "dag_id": ti.dag_id,
            "run_id": ti.run_id,
            "task_id": ti.task_id,
            "map_index": -1 if ti.map_index is None else ti.map_index,
            "try_number": ti.try_number,
        }
        # One failed try has one id, whether or not a retry follows.
        return _scope(*about.values(), "failed" if state == "up_for_retry" else state), {**about, "state": state}
    if isinstance(run, Mapping):  # the callback of a deadline
        deadline = values.get("deadline") or {}
        about = {"dag_id": run.get("dag_id"), "run_id": run.get("dag_run_id")}
        return _scope(*about.values(), deadline.get("id")), about
    about = {"dag_id": getattr(values.get("dag"), "dag_id", None), "run_id": values.get("run_id")}
    if "reason" in values:
        about["reason"] = values["reason"]
    return _scope(*about.values(), getattr(run, "clear_number", None)), about  # a cleared run ends a second time


def _scope(*names: object) -> str:
    return json.dumps(names, default=str)


def _state(ti: Any) -> str:
    """Return a task's state. For a task that died, the DAG processor knows neither its state nor its start."""
    if ti.state is not None:
        return str(getattr(ti.state, "value", ti.state))
    return "running" if getattr(ti, "start_date", None) else "failed"
