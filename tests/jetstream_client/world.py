"""Every way to authenticate and every mode of TLS: settings that a server accepts, and settings that it refuses."""

import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from demo.nats_server import NatsServer
from tests.jetstream_client.servers import PASSWORD, TOKEN, Authority, Nkey, Operator

KINDS = ("none", "user", "token", "nkey", "credentials", "verify", "verify_and_map")
MODES = ("plain", "tls", "handshake first")
COMBINATIONS = [(kind, mode) for kind in KINDS for mode in MODES if mode != "plain" or not kind.startswith("verify")]
"""Certificates work over TLS only."""
EACH_ONCE = [
    ("user", "plain"),
    ("token", "tls"),
    ("nkey", "handshake first"),
    ("credentials", "tls"),
    ("verify_and_map", "tls"),
]
"""Each kind of secret once, and each mode."""
WRONG = "wrong-5e1c"

Fields = dict[str, Any]


class World:
    """Keys, certificates, and a server for each kind of authentication and each mode of TLS."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._servers: dict[str, NatsServer] = {}
        self.authority, self.stranger = Authority(folder / "ours"), Authority(folder / "foreign")
        self.operator, self.foreign_operator = Operator(), Operator()
        self.nkey, self.user = Nkey(), Nkey()
        self.certificate = self.authority.issue("airflow")

    def server(self, config: str) -> NatsServer:
        if config not in self._servers:
            server = NatsServer(self._folder / f"server-{len(self._servers)}", config)
            self._stack.callback(server.stop)
            server.start()
            self._servers[config] = server
        return self._servers[config]

    def config(self, kind: str, mode: str) -> str:
        users = (
            f'authorization {{ users: [{{user: airflow, password: "{PASSWORD}"}}, {{nkey: {self.nkey.public}}}] }}\n'
        )
        mapped = "authorization { users: [{user: airflow}] }\n"
        known = {"user": users, "nkey": users, "token": TOKEN + "\n", "credentials": self.operator.config}
        config = {**known, "verify_and_map": mapped}.get(kind, "")
        if mode == "plain":
            return config
        more = f'ca_file: "{self.authority.ca}", {kind}: true,' if kind.startswith("verify") else ""
        return config + self.authority.config(more + ("handshake_first: true" if mode == "handshake first" else ""))

    def url(self, kind: str, mode: str) -> str:
        return f"nats://localhost:{self.server(self.config(kind, mode)).port}"

    def tls(self, mode: str) -> Fields:
        if mode == "plain":
            return {}
        return {"tls_ca": self.authority.ca.read_text(), "tls_handshake_first": mode == "handshake first"}

    def who(self, kind: str) -> Fields:
        """The settings that the server of this kind accepts."""
        return {
            "none": {},
            "user": {"user": "airflow", "password": PASSWORD},
            "token": {"token": PASSWORD},
            "nkey": {"nkey_seed": self.nkey.seed},
            "credentials": {"credentials": self.operator.credentials(self.user)},
        }.get(kind) or (presented(self.certificate) if kind.startswith("verify") else {})

    def strangers(self, kind: str) -> dict[str, tuple[Fields, str]]:
        """Settings that the server of this kind must refuse, and what the error must say."""
        mine, now = self.operator.credentials(self.user), int(time.time())
        foreign, ours = self.stranger.issue("airflow"), self.authority
        certificate = "set tls_certificate to"
        return {
            "none": {},
            "user": {
                "nothing": ({}, "set user and password"),
                "password": ({"user": "airflow", "password": WRONG}, "correct the user or the password"),
                "kind": ({"token": WRONG}, "correct the token"),
            },
            "token": {
                "nothing": ({}, "set user and password, a token"),
                "token": ({"token": WRONG}, "correct the token"),
                "kind": ({"nkey_seed": self.nkey.seed}, "it sent no nonce to sign"),
            },
            "nkey": {
                "nothing": ({}, "an NKey seed"),
                "seed": ({"nkey_seed": (other := Nkey()).seed}, f"add the user {other.public}"),
            },
            "credentials": {
                "nothing": ({}, "credentials"),
                "operator": ({"credentials": self.foreign_operator.credentials(self.user)}, "account have issued"),
                "expired": (
                    {"credentials": self.operator.credentials(self.user, expires=now - 60)},
                    "the credentials expired at .*renew them",
                ),
                "seed": ({"credentials": mine.replace(self.user.seed, Nkey().seed)}, "account have issued"),
            },
            "verify": {
                "nothing": ({}, certificate),
                "authority": (presented(foreign), certificate),
                "expired": (presented(ours.issue("late", timedelta(minutes=-1))), certificate),
            },
            "verify_and_map": {
                "nothing": ({}, certificate),
                "name": (presented(ours.issue("somebody")), "user for the name in the client certificate"),
            },
        }[kind]


def presented(files: tuple[Path, Path]) -> Fields:
    return {"tls_certificate": files[0].read_text(), "tls_private_key": files[1].read_text()}
