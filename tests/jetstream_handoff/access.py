"""The server of docs/reference/permissions.conf, and connections of its users."""

import os
import secrets
import signal
from pathlib import Path

from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import ConnectionSettings

SHIPPED = (Path(__file__).parent.parent.parent / "docs" / "reference" / "permissions.conf").read_text()
ROLES = ("setup", "publisher", "sensor", "processor", "reader")
API_PREFIX = "JS.airflow.API"
"""The prefix under which publishers and readers import the parts of JetStream that they need."""
SHARED = """accounts { AIRFLOW { jetstream: enabled, users: [
  { user: setup, password: $NATS_SETUP_PASSWORD }
  { user: publisher, password: $NATS_PUBLISHER_PASSWORD, permissions {
    publish: ["flights.>", "$JS.API.STREAM.INFO.FLIGHTS"], subscribe: "_INBOX_publisher.>" } }
  { user: reader, password: $NATS_READER_PASSWORD, permissions {
    publish: ["$JS.API.STREAM.INFO.FLIGHTS", "$JS.API.DIRECT.GET.FLIGHTS", "$JS.API.STREAM.MSG.GET.FLIGHTS"]
    subscribe: "_INBOX_reader.>" } }
] } }"""
"""A counterexample: publishers and readers in the account of the streams, with the least permissions that work."""
_ADMIN = "{ user: admin, password: $NATS_ADMIN_PASSWORD }"


class Access:
    """A server with an additional user for the test, who may do everything in the account of the streams."""

    def __init__(self, folder: Path, config: str = SHIPPED) -> None:
        self._passwords = {role: f"hidden-{secrets.token_hex(6)}" for role in (*ROLES, "admin")}
        environment = {f"NATS_{role.upper()}_PASSWORD": password for role, password in self._passwords.items()}
        self._config = config.replace("users: [", f"users: [ {_ADMIN}", 1)
        self._imported = ("publisher", "reader") if API_PREFIX in config else ()
        self.server = NatsServer(folder, self._config, environment=environment)

    def settings(self, role: str) -> ConnectionSettings:
        return ConnectionSettings(
            servers=self.server.url,
            user=role,
            password=self._passwords[role],
            request_timeout=0.5,
            shortest_ack_wait=0.5,
            ledger="airflow",
            inbox_prefix="_INBOX" if role == "admin" else f"_INBOX_{role}",
            api_prefix=API_PREFIX if role in self._imported else None,
        )

    def without(self, role: str, subject: str) -> None:
        """Withdraw a permission while the server runs. Returns when the server has applied this."""
        head, user, tail = self._config.partition(f"user: {role},")
        changed = head + user + tail.replace(f'"{subject}"', "", 1)
        (self.server.folder / "nats-server.conf").write_text(changed)
        reloaded = self._reloaded()
        os.kill(self.server.pid, signal.SIGHUP)
        until("the server has reloaded", lambda: self._reloaded() > reloaded, 30, every=0.01)

    def _reloaded(self) -> int:
        return self.server.log.read_text().count("Reloaded server configuration")
