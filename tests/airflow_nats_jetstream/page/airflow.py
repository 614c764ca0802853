"""The process with Airflow's application, and clients that log in as Airflow's own page does."""

import json
import os
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from demo.service import Service, free_port

ROLES = ("viewer", "user", "op", "admin")
BASE = "/air/flow"
"""The base path of Airflow."""
PREFIX = f"{BASE}/jetstream/api"
SAME = {"Sec-Fetch-Site": "same-origin"}
ROOT = Path(__file__).parents[3]


class Airflow(Service):
    """Airflow's application in a separate process.

    connections:  connections in environment variables, by id.
    stored:       connections in the database, by id.
    """

    def __init__(
        self,
        folder: Path,
        connections: Mapping[str, Any],
        stored: Mapping[str, Any],
        manager: str = "",
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._password = secrets.token_hex(8)
        self._manager = manager
        passwords = folder / "passwords.json"
        passwords.write_text(json.dumps(dict.fromkeys(ROLES, self._password)))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        sections: dict[str, dict[str, object]] = {
            "core": {
                "load_examples": False,
                "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "simple_auth_manager_users": ",".join(f"{role}:{role}" for role in ROLES),
                "simple_auth_manager_passwords_file": passwords,
                **({"auth_manager": manager} if manager else {}),
            },
            "database": {"sql_alchemy_conn": f"sqlite:///{folder / 'airflow.db'}"},
            "api": {"base_url": f"{self.url}{BASE}", "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            "logging": {"logging_level": "DEBUG"},
            "usage_data_collection": {"enabled": False},
        }
        environment |= {
            f"AIRFLOW__{section}__{name}".upper(): str(value)
            for section, values in sections.items()
            for name, value in values.items()
        }
        environment |= {f"AIRFLOW_CONN_{each.upper()}": json.dumps(value) for each, value in connections.items()}
        environment |= {"AIRFLOW_HOME": str(folder), "STORED": json.dumps(stored), "PASSWORD": self._password}
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, "-m", "tests.airflow_nats_jetstream.page.api_server", str(port)]
        super().__init__("airflow", command, folder=folder, environment=environment)

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}{BASE}/api/v2/version", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, role: str = "", **options: Any) -> httpx.Client:
        """Return a client with the cookie of a user, or of nobody. Its paths are below the page's API."""
        cookies = {"_token": self.token(role)} if role else {}
        return httpx.Client(base_url=f"{self.url}{PREFIX}/", cookies=cookies, timeout=60, **options)

    def token(self, role: str) -> str:
        """Log in, and return the value of Airflow's cookie."""
        login = {"username": role, "password": self._password}
        answer = httpx.post(f"{self.url}{BASE}/auth/token", json=login, timeout=60)
        return str(answer.raise_for_status().json()["access_token"])
