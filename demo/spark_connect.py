"""A Spark Connect server: one warm Spark, on which many tasks have their sessions."""

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from demo.java import java_home
from demo.service import Service, free_port
from jetstream_client import ConnectionSettings
from jetstream_client.wire.settings import FOLDER, environment_name

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

# Every user of the machine can reach Spark's ports, and neither its pages nor a driver that receives Java objects asks
# for a password. In local mode Spark creates the secret for `authenticate` automatically.
CLOSED = {"spark.ui.enabled": "false", "spark.authenticate": "true"}


def write_config(folder: Path, config: Mapping[str, str]) -> None:
    """Write Spark's configuration into a folder, which `SPARK_CONF_DIR` must name."""
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in config.items()))


class SparkConnect(Service):
    """A Spark Connect server on localhost, which runs the jobs of clients that show its token.

    It finds the settings of a connection in a file of its folder `connections`, which it reads again for each job.
    """

    def __init__(
        self,
        folder: Path,
        spark_home: Path,
        *,
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a server without starting it.

        spark_home:   the home of Spark, for example that of :func:`demo.spark_home.spark_home`.
        config:       Spark's configuration; default: local mode on all cores, without web pages.
        environment:  its complete environment, except for the variables that are set here; default: that of this
                      process.
        """
        folder = folder.absolute()
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self.connections = folder / "connections"
        self.clients = {"SPARK_REMOTE": f"sc://localhost:{self.port}", "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token}
        """The environment variables by which a client finds it."""
        self._config = {
            **CLOSED,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            **(config or {}),
        }
        own = {
            "JAVA_HOME": str(java_home()),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token,
            "SPARK_HOME": str(spark_home),
            # Otherwise Spark looks up the address of the machine's name, which may have none.
            "SPARK_LOCAL_IP": "127.0.0.1",
            FOLDER: str(self.connections),
        }
        inherited = {**(os.environ if environment is None else environment)}
        inherited.pop("SPARK_REMOTE", None)
        command = [str(spark_home / "bin" / "spark-submit"), "--class", _SERVER]
        super().__init__("spark-connect", command, folder=folder, environment=inherited | own)

    def launch(self) -> None:
        self.connections.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_config(self.folder, self._config)
        super().launch()

    def connection(self, name: str, settings: ConnectionSettings) -> None:
        """Write or change the settings of a connection, for the next job. No job sees a partly written file."""
        written = self.connections / f".{name}"
        written.touch(mode=0o600)
        written.write_text(settings.to_json())
        written.rename(self.connections / environment_name(name))

    def ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
