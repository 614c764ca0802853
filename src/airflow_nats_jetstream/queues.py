# SPDX-License-Identifier: Apache-2.0
"""``MessageQueueTrigger(scheme="nats", stream=…, consumer=…)``, which needs the extra ``messaging``."""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from airflow_nats_jetstream.watcher import JetStreamNoticeTrigger


class JetStreamQueueProvider(BaseMessageQueueProvider):
    """The scheme ``nats`` of Airflow's ``MessageQueueTrigger``.

    The trigger's keyword arguments are the parameters of
    :class:`~airflow_nats_jetstream.watcher.JetStreamNoticeTrigger`.
    """

    scheme = "nats"

    def trigger_class(self) -> type[JetStreamNoticeTrigger]:
        return JetStreamNoticeTrigger
