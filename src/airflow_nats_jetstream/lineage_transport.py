# SPDX-License-Identifier: Apache-2.0
"""OpenLineage's transport to JetStream. OpenLineage imports it by its path, which must not change:
``{"type": "airflow_nats_jetstream.lineage_transport.JetStreamTransport", "servers": "nats://nats.example.com"}``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import fields
from typing import Any, Self

from openlineage.client.serde import Serde
from openlineage.client.transport import Config, Transport

from airflow_nats_jetstream.signals.run_events import counted, token
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name, check_subject
from jetstream_client.outbox import MOST, Outbox
from jetstream_client.quantities import check_count, check_seconds
from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

_INTERNAL = ("learned", "source", "words")
_SETTINGS = tuple(each.name for each in fields(ConnectionSettings) if each.name not in _INTERNAL)


class JetStreamConfig(Config):
    """The configuration of the transport.

    settings:        the connection, with the fields of :class:`~jetstream_client.wire.settings.ConnectionSettings`.
    subject_prefix:  what all subjects begin with. Default ``openlineage``.
    stream:          the name of the stream that must store the events. Default None: any stream.
    timeout:         for how many seconds ``emit`` waits until an event is stored, because a process of Airflow that
                     emits events may end after it. It does not wait while NATS is known not to answer. Default 2; with
                     0 it never waits.
    max_events:      how many events each process keeps in memory while NATS does not answer. Default 10,000.

    Raises:
        InvalidValue: an option is unknown or invalid.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        subject_prefix: str = "openlineage",
        stream: str | None = None,
        timeout: float = 2.0,
        max_events: int = MOST,
    ) -> None:
        self.settings = settings
        self.subject_prefix = check_subject(subject_prefix, "subject_prefix")
        self.stream = None if stream is None else check_stream_name(stream)
        self.timeout = check_seconds("timeout", timeout, zero=True)
        self.max_events = check_count("max_events", max_events)

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> Self:
        """Return the configuration that OpenLineage has read.

        params:  the options, and ``type``.
        """
        given = {name: value for name, value in params.items() if name != "type"}
        own = {name: given.pop(name) for name in ("subject_prefix", "stream", "timeout", "max_events") if name in given}
        if unknown := given.keys() - set(_SETTINGS):
            name = min(unknown)
            raise InvalidValue(name, "…", "the transport to JetStream has no such option; leave it out")
        return cls(ConnectionSettings(**given), **own)


class JetStreamTransport(Transport):
    """Publish each event of OpenLineage as a message.

    config:  the configuration.

    The subject of an event of a run is ``openlineage.<namespace>.<job>.<state>``, with the state in lower case, of a
    job ``openlineage.<namespace>.<job>.job``, and of a dataset ``openlineage.<namespace>.<name>.dataset``. Each name is
    encoded as one token (:func:`airflow_nats_jetstream.signals.run_events.token`).
    """

    kind = "jetstream"
    config_class = JetStreamConfig

    def __init__(self, config: JetStreamConfig) -> None:
        self.config = config
        self._outbox = self._new()
        os.register_at_fork(after_in_child=self._forked)

    def emit(self, event: Any) -> None:
        """Publish an event. Events that cannot be published are counted and logged, and no error is raised.

        event:  the event.
        """
        data = Serde.to_json(event).encode()
        self._outbox.put(self._subject(event), data, hashlib.sha256(data).hexdigest())
        if left := self._outbox.flush(self.config.timeout):
            log.warning("%d events of OpenLineage are not stored yet; they are lost if this process ends now", left)

    def close(self, timeout: float = -1) -> bool:
        """Close the transport. Events that are left are lost, counted and logged. Returns False if there are any.

        timeout:  for how many seconds to wait until all events are stored. Default: as in the configuration.
        """
        before = self._outbox.lost
        self._outbox.close(self.config.timeout if timeout < 0 else timeout)
        return self._outbox.lost == before

    def _subject(self, event: Any) -> str:
        about = getattr(event, "job", None) or event.dataset
        kind = "job" if hasattr(event, "job") else "dataset"
        state = event.eventType.value.lower() if hasattr(event, "eventType") else kind
        return ".".join([self.config.subject_prefix, token(about.namespace), token(about.name), state])

    def _new(self) -> Outbox:
        config = self.config
        return Outbox(lambda: config.settings, stream=config.stream, most=config.max_events, on_count=counted)

    def _forked(self) -> None:
        """Begin anew in a process that was forked: its parent publishes what is in the parent's outbox."""
        self._outbox = self._new()
