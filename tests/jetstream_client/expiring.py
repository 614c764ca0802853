"""Credentials that expire, and are renewed in their file."""

import os
import signal
import time
from pathlib import Path

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from tests.jetstream_client.servers import Nkey, Operator, Serve

SHORT = 2
"""Seconds until credentials expire. The server counts whole seconds."""


class Expiring:
    """A server whose users expire, and a file with credentials."""

    def __init__(self, serve: Serve, folder: Path) -> None:
        self._operator = Operator()
        self._user = Nkey()
        self.server = serve(self._operator.config)
        self.path = folder / "user.creds"
        self.settings = ConnectionSettings(servers=self.server.url, credentials=str(self.path), connect_timeout=2)
        self.end_of_first = 0.0  # seconds since 1970

    def renew(self, seconds: float = 600) -> None:
        """Replace the file. The new credentials expire after so many seconds, at least."""
        new = self.path.with_suffix(".new")
        end = int(time.time() + seconds + 1)
        if seconds == SHORT:
            self.end_of_first = end
        new.write_text(self._operator.credentials(self._user, expires=end))
        new.rename(self.path)


def reload(server: NatsServer, config: str) -> None:
    server._settings.write_text(config)
    os.kill(server.pid, signal.SIGHUP)
