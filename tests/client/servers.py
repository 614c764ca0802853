"""Configurations of servers that tests start for themselves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from demo.nats_server import NatsServer

Serve = Callable[[str], NatsServer]
"""Starts a server with a configuration."""

PASSWORD = "hidden-7d1"
USER = f'authorization {{ user: airflow, password: "{PASSWORD}" }}'
TOKEN = f'authorization {{ token: "{PASSWORD}" }}'


class Authority:
    """A certificate authority in a folder, with one certificate for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._certificate("authority", self.key, authority=True))
        leaf = ec.generate_private_key(ec.SECP256R1())
        self.certificate, self.private_key = folder / "server.pem", folder / "server-key.pem"
        self.certificate.write_bytes(self._certificate("localhost", leaf))
        self.private_key.write_bytes(
            leaf.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def _certificate(self, name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool = False) -> bytes:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)

    def config(self, more: str = "") -> str:
        return f'tls {{ cert_file: "{self.certificate}", key_file: "{self.private_key}", {more} }}\n'
