# SPDX-License-Identifier: Apache-2.0
"""How messages name what their reader can use. The package of an orchestrator has other words than this client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words of one connection: ``ConnectionSettings.words``. Each is a phrase in a sentence.

    create_stream:       what creates a stream.
    update_stream:       what changes the configuration of a stream.
    create_consumer:     what creates a consumer.
    credential_folders:  where the folders are configured from which the files of credentials may be read.
    connecting:          the machines that read these files.
    """

    create_stream: str = "JetStream.create_stream()"
    update_stream: str = "Stream.update()"
    create_consumer: str = "Stream.create_consumer()"
    credential_folders: str = "credential_folders where this process is configured"
    connecting: str = "every machine that connects"


OF_CLIENT = Words()
"""The words without an orchestrator."""
