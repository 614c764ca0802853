"""The Test button's answer to each mistake, on real servers: the field, the problem and what to do.

No answer shows a secret.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_nats_jetstream.hooks import JetStreamHook
from demo.nats_server import NatsServer
from demo.service import free_port
from tests.jetstream_client.servers import PASSWORD, Nkey
from tests.jetstream_client.world import WRONG, World

SECRET = "hidden-2f8c"
NKEY = Nkey()
MONITOR = free_port()
ACCOUNTS = f"""
http: "127.0.0.1:{MONITOR}"
accounts {{
  WITH: {{
    jetstream: enabled
    users: [
      {{ user: airflow, password: "{PASSWORD}" }}
      {{ user: blind, password: "{PASSWORD}", permissions: {{ publish: {{ deny: "$JS.API.INFO" }} }} }}
      {{ user: deaf, password: "{PASSWORD}", permissions: {{ subscribe: "_INBOX_deaf.>" }} }}
    ]
  }}
  WITHOUT: {{ users: [{{ user: nobody, password: "{PASSWORD}" }}] }}
}}
"""
Fields = dict[str, Any]
"""The fields of an Airflow connection. Fields of NATS are in its extra."""


class Servers(World):
    """Servers without JetStream, or without a permission."""

    @property
    def accounts(self) -> str:
        return self.server(ACCOUNTS).url

    @property
    def monitor(self) -> str:
        self.server(ACCOUNTS)
        return f"nats://127.0.0.1:{MONITOR}"

    def without_jetstream(self, folder: Path) -> str:
        server = NatsServer(folder / "without")
        flag = server.command.index("--jetstream")
        del server.command[flag : flag + 3]
        self._stack.callback(server.stop)
        server.start()
        return server.url

    def late(self) -> str:
        files = self.authority.issue("localhost", timedelta(minutes=-1))
        return f"nats://localhost:{self.server(self.authority.config(files=files)).port}"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("wrong"), stack)


def answer(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """As Airflow's api-server asks: with the connection's URI in the environment (routes/public/connections.py)."""
    own = {name: fields.pop(name) for name in ("host", "port", "login", "password") if name in fields}
    extra = fields.pop("extra", None) or json.dumps({"connect_timeout": 2, "request_timeout": 1} | fields)
    connection = Connection(conn_id="c", conn_type="nats", extra=extra, **own)
    if extra.startswith("{"):
        monkeypatch.setenv("AIRFLOW_CONN_NATS_WRONG", connection.get_uri())
    else:
        monkeypatch.setenv("AIRFLOW_CONN_NATS_WRONG", json.dumps({"conn_type": "nats", "extra": extra, **own}))
    return JetStreamHook("nats_wrong").test_connection()


def ca(servers: Servers) -> str:
    return servers.authority.ca.read_text()


def changed(seed: str) -> str:
    return seed[:30] + ("B" if seed[30] == "A" else "A") + seed[31:]


Case = tuple[Callable[[Servers, Path], Fields], str]
REACHING: dict[str, Case] = {
    "no server": (
        lambda _, __: {"servers": f"nats://127.0.0.1:{free_port()}"},
        "no NATS server.*correct the addresses and ports",
    ),
    "no such host": (
        lambda _, __: {"host": "nats.invalid"},
        "no NATS server.*nats.invalid.*correct the addresses and ports",
    ),
    "monitoring port": (lambda s, _: {"servers": s.monitor}, "did not send the first line.*4222.*8222"),
    "two ways to say where": (
        lambda s, _: {"host": "a", "servers": s.accounts},
        "servers=.*either 'servers' or 'host', not both",
    ),
    "two ways, and a secret": (lambda _, __: {"host": "a", "servers": f"nats://u:{SECRET}@h"}, "servers=.*not both"),
    "secret with a comma": (lambda _, __: {"servers": f"nats://u:1,{SECRET}@h"}, "servers=.*their own fields"),
    "secret in a query": (lambda _, __: {"servers": f"nats://h?token={SECRET}"}, "servers=.*nats://host:port"),
    "secret in the host": (lambda _, __: {"host": f"u:1,{SECRET}@h"}, "servers=.*their own fields"),
    "another scheme": (lambda _, __: {"servers": "http://a:4222"}, "servers=.*nats://host:port"),
    "secret in the address": (lambda _, __: {"servers": f"nats://u:{SECRET}@a"}, "servers=.*their own fields"),
    "no such domain": (lambda s, _: {**who(s), "domain": "hub"}, "no server answers.*domain 'hub'.*correct 'domain'"),
    "no such API": (lambda s, _: {**who(s), "api_prefix": "JS.x"}, "no server answers.*'JS.x'.*correct api_prefix"),
    "no JetStream": (lambda s, f: {"servers": s.without_jetstream(f)}, "connected, but.*not enabled on this server"),
    "no JetStream for the account": (lambda s, _: who(s, "nobody"), "connected, but.*not enabled for the account"),
    "may not ask": (lambda s, _: who(s, "blind"), r"no permission to publish on '\$JS.API.INFO'.*Only this test"),
    "may not hear": (lambda s, _: who(s, "deaf"), "no permission to subscribe to '_inbox.*set inbox_prefix"),
}
TLS: dict[str, Case] = {
    "none on the server": (lambda s, _: {"servers": s.accounts, "tls": True}, "TLS is set here.*does not offer it"),
    "none asked for": (lambda s, _: {"servers": s.url("none", "tls")}, "the server requires TLS; set tls"),
    "first": (lambda s, _: {"servers": s.url("none", "handshake first")}, "set tls_handshake_first"),
    "not first": (
        lambda s, _: {"servers": s.url("none", "tls"), "tls_ca": ca(s), "tls_handshake_first": True},
        "handshake_first (on the server too|if tls_handshake_first is set here)",
    ),
    "unknown authority": (lambda s, _: {"servers": s.url("none", "tls"), "tls": True}, "not accepted.*set tls_ca"),
    "another authority": (
        lambda s, _: {"servers": s.url("none", "tls"), "tls_ca": s.stranger.ca.read_text()},
        "not accepted.*set tls_ca",
    ),
    "expired": (lambda s, _: {"servers": s.late(), "tls_ca": ca(s)}, "expired; renew the server's certificate"),
    "another name": (
        lambda s, _: {"servers": s.url("none", "tls").replace("localhost", "127.0.0.1"), "tls_ca": ca(s)},
        "not accepted.*set tls_hostname",
    ),
    "no certificate of ours": (
        lambda s, _: {"servers": s.url("verify", "tls"), "tls_ca": ca(s)},
        "set tls_certificate to",
    ),
    "half a certificate": (lambda s, _: {"servers": s.accounts, "tls_certificate": "a.pem"}, "tls_private_key=None"),
    "no PEM": (
        lambda s, _: {**tls(s), "tls_ca": "-----BEGIN HIDDEN"},
        "tls_ca='…': the text or file contains no block.*CERTIFICATE",
    ),
    "broken PEM": (lambda s, _: {**tls(s), "tls_ca": ca(s).replace("M", "A")}, "tls_ca='…': this is not a PEM cert"),
    "no file": (lambda s, f: {**tls(s), "tls_ca": str(f / SECRET)}, "tls_ca='…': the file.*No such file"),
    "no file for the key": (
        lambda s, f: {**tls(s), "tls_certificate": str(s.certificate[0]), "tls_private_key": str(f / SECRET)},
        "tls_private_key='…': the file.*No such file",
    ),
    "key of another": (
        lambda s, _: {
            **tls(s),
            "tls_certificate": str(s.certificate[0]),
            "tls_private_key": s.stranger.private_key.read_text(),
        },
        "tls_certificate='…': certificate and private key must",
    ),
}
WHO: dict[str, Case] = {
    "nobody": (lambda s, _: {"servers": s.accounts}, "set user and password, a token, an NKey seed"),
    "user without password": (lambda s, _: {"servers": s.accounts, "login": "airflow"}, "password=None.*together"),
    "password without user": (lambda s, _: {"servers": s.accounts, "password": SECRET}, "login=None.*together"),
    "password": (
        lambda s, _: {**who(s), "password": WRONG},
        "refused the connection.*correct the user or the password",
    ),
    "token": (lambda s, _: {"servers": s.url("token", "plain"), "token": WRONG}, "refused.*correct the token"),
    "seed": (
        lambda s, _: {"servers": s.url("nkey", "plain"), "nkey_secret": NKEY.seed},
        f"add the user {NKEY.public}",
    ),
    "changed seed": (
        lambda s, _: {"servers": s.url("nkey", "plain"), "nkey_secret": changed(s.nkey.seed)},
        "nkey_secret='…': the seed's checksum is wrong",
    ),
    "no seed": (
        lambda s, _: {"servers": s.accounts, "nkey_secret": SECRET},
        "nkey_secret='…': a user's seed.*SU.*path",
    ),
    "seed for nobody": (
        lambda s, _: {"servers": s.url("token", "plain"), "nkey_secret": s.nkey.seed},
        "it sent no nonce to sign",
    ),
    "credentials": (
        lambda s, _: {
            "servers": s.url("credentials", "plain"),
            "creds_secret": s.foreign_operator.credentials(s.user),
        },
        "use credentials that the server's operator and account have issued",
    ),
    "expired credentials": (
        lambda s, _: {
            "servers": s.url("credentials", "plain"),
            "creds_secret": s.operator.credentials(s.user, expires=int(time.time()) - 60),
        },
        "the credentials expired at .*renew them",
    ),
    "no credentials": (lambda s, _: {"servers": s.accounts, "creds_secret": SECRET}, "creds_secret='…': set .* .creds"),
    "two at once": (lambda s, _: {**who(s), "token": SECRET}, "authentication='user and token': set only one"),
    "no file of a password": (
        lambda s, f: {**who(s), "password": f"file://{f / SECRET}"},
        "password='…': the file.*No such file.*api-server",
    ),
    "no file of a seed": (
        lambda s, f: {"servers": s.url("nkey", "plain"), "nkey_secret": str(f / SECRET)},
        "nkey_secret='…': the file.*No such file",
    ),
    "another file of the machine": (
        lambda s, _: {"servers": s.accounts, "token": "file:///etc/passwd"},
        "token='…': the file.*outside the folders.*credential_folders",
    ),
    "a file without end": (
        lambda s, _: {"servers": s.url("none", "tls"), "tls_ca": "/dev/zero"},
        "tls_ca='…': the file.*outside the folders",
    ),
    "no file of credentials": (
        lambda s, f: {"servers": s.url("credentials", "plain"), "creds_secret": str(f / SECRET)},
        "creds_secret='…': the file.*No such file",
    ),
}
WRITING: dict[str, Case] = {
    "unknown field": (lambda _, __: {"tls_cert": SECRET}, "extra='tls_cert'.*tls_certificate"),
    "neither true nor false": (lambda _, __: {"tls": "maybe"}, r"extra\['tls'\]=<class 'str'>: .*give true or false"),
    "no seconds": (
        lambda _, __: {"connect_timeout": "soon"},
        r"extra\['connect_timeout'\]=<class 'str'>: .*give a number of s",
    ),
    "without end": (lambda _, __: {"connect_timeout": 10**6}, "connect_timeout=.*at most a day"),
    "domain and prefix": (lambda _, __: {"domain": "a", "api_prefix": "b"}, "domain='a'.*not both"),
    "no subject": (lambda _, __: {"inbox_prefix": "_INBOX.>"}, "inbox_prefix="),
    "no bucket": (lambda _, __: {"ledger": "a.b"}, "ledger='a.b': must consist of"),
    "no page": (lambda _, __: {"console": "nats.example.com"}, "console="),
    "no JSON": (lambda _, __: {"extra": f"token: {SECRET}"}, "extra='…': .*JSON object"),
}


def who(servers: Servers, user: str = "airflow") -> Fields:
    return {"servers": servers.accounts, "login": user, "password": PASSWORD}


def tls(servers: Servers) -> Fields:
    return {"servers": servers.url("none", "tls"), "tls_ca": ca(servers)}


@pytest.mark.parametrize(
    ("fields", "says"),
    [pytest.param(*case, id=name) for group in (REACHING, TLS, WHO, WRITING) for name, case in group.items()],
)
def test_what_is_wrong_and_what_to_do(
    servers: Servers,
    fields: Callable[[Servers, Path], Fields],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = os.pathsep.join(map(str, (tmp_path, servers.certificate[0].parent)))
    monkeypatch.setenv("AIRFLOW__NATS__CREDENTIAL_FOLDERS", allowed)
    given = fields(servers, tmp_path)
    works, words = answer(dict(given), monkeypatch)
    assert not works
    assert re.search(says, words), words
    for hidden in (SECRET, PASSWORD, WRONG, NKEY.seed, servers.nkey.seed, servers.user.seed):
        assert hidden not in words
    for name in ("creds_secret", "nkey_secret", "tls_private_key"):
        assert given.get(name, SECRET) not in words


def test_what_is_right(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    works, words = answer(who(servers), monkeypatch)
    assert works
    assert re.search(r"nats-server \d+\.\d+\.\d+, round trip [\d.]+ ms; JetStream: 0 streams .*storage", words)
