"""The process with Airflow's application, and clients that log in as Airflow's own page does."""

import json
import os
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from demo.service import Service, free_port

ROLES = ("viewer", "user", "op", "admin")
PARTNER = "partner"
"""A user with the role ``op`` who may not see the DAG ``orders`` (:mod:`.partner`)."""
USERS = (*(f"{role}:{role}" for role in ROLES), f"{PARTNER}:op")
BASE = "/air/flow"
"""The base path of Airflow."""
SAME = {"Sec-Fetch-Site": "same-origin"}
ROOT = Path(__file__).parents[3]


class Airflow(Service):
    """Airflow's application in a separate process.

    connections:  connections in environment variables, by id.
    stored:       connections in the database, by id.
    manager:      the auth manager. Default: the simple one, with a user for each role.
    workers:      the number of worker processes of ``airflow api-server``. Default 0: the application runs without that
                  command, which starts sooner.
    users:        the users of the simple auth manager, each with a role, and with a team if Airflow has teams.
    teams:        the teams. The first one owns the DAG ``orders``.
    base:         the base path.
    """

    def __init__(
        self,
        folder: Path,
        connections: Mapping[str, Any],
        stored: Mapping[str, Any],
        manager: str = "tests.airflow_nats_jetstream.page.partner.PartnerAuthManager",
        *,
        base: str = BASE,
        workers: int = 0,
        users: Sequence[str] = USERS,
        teams: Sequence[str] = (),
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.base = base
        self.database = folder / "airflow.db"
        self.password = secrets.token_hex(8)
        passwords = folder / "passwords.json"
        passwords.write_text(json.dumps({user.partition(":")[0]: self.password for user in users}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        sections: dict[str, dict[str, object]] = {
            "core": {
                "load_examples": False,
                "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "simple_auth_manager_users": ",".join(users),
                "simple_auth_manager_passwords_file": passwords,
                "auth_manager": manager,
                **({"multi_team": True} if teams else {}),
            },
            "database": {"sql_alchemy_conn": f"sqlite:///{self.database}"},
            "api": {"base_url": f"{self.url}{base}", "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            "fab": {"auth_rate_limited": False},  # tests log in often
            "logging": {"logging_level": "INFO" if workers else "DEBUG"},
            "usage_data_collection": {"enabled": False},
        }
        environment |= {
            f"AIRFLOW__{section}__{name}".upper(): str(value)
            for section, values in sections.items()
            for name, value in values.items()
        }
        environment |= {f"AIRFLOW_CONN_{each.upper()}": json.dumps(value) for each, value in connections.items()}
        environment |= {"AIRFLOW_HOME": str(folder), "STORED": json.dumps(stored), "PASSWORD": self.password}
        environment |= {"TEAMS": json.dumps(teams), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.airflow_nats_jetstream.page.api_server", str(port), str(workers)]
        super().__init__("airflow", command, folder=folder, environment=environment)

    def wait_ready(self, seconds: float = 240) -> None:
        super().wait_ready(seconds)

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}{self.base}/api/v2/version", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def processes(self) -> list[psutil.Process]:
        """The processes that answer requests. With one worker there is only one process."""
        known = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        workers = [each for each in known if "spawn_main" in " ".join(each.cmdline())]
        return workers or known[:1]

    def client(self, role: str = "", **options: Any) -> httpx.Client:
        """Return a client with the cookie of a user, or of nobody. Its paths are below the page's API."""
        cookies = {"_token": self.token(role)} if role else {}
        return httpx.Client(base_url=f"{self.url}{self.base}/jetstream/api/", cookies=cookies, timeout=60, **options)

    def token(self, role: str) -> str:
        """Log in, and return the value of Airflow's cookie."""
        login = {"username": role, "password": self.password}
        answer = httpx.post(f"{self.url}{self.base}/auth/token", json=login, timeout=60)
        return str(answer.raise_for_status().json()["access_token"])
