"""A credential in a file: read where a connection is made, and again at each reconnect; what is wrong is named."""

import asyncio
from pathlib import Path

import pytest

from airflow_nats_jetstream.client import ConnectionSettings, connect
from airflow_nats_jetstream.client.credential import path_of, read, read_pem
from airflow_nats_jetstream.client.errors import InvalidValue
from demo.nats_server import NatsServer
from tests.client.servers import Authority
from tests.client.until import until


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("password", "/not/a/path", None),
        ("token", "~", None),
        ("password", "file:///a/b", "/a/b"),
        ("nkey_seed", "SUA", None),
        ("nkey_seed", "/a/seed.nk", "/a/seed.nk"),
        ("credentials", "~/airflow.creds", "~/airflow.creds"),
        ("credentials", "-----BEGIN NATS USER JWT-----", None),
        ("tls_ca", "ca.pem", "ca.pem"),
        ("tls_private_key", "-----BEGIN PRIVATE KEY-----", None),
        ("tls_private_key", "file:///a/key.pem", "/a/key.pem"),
    ],
)
def test_what_is_a_path(field: str, value: str, path: str | None) -> None:
    assert path_of(field, value) == (Path(path) if path else None)


@pytest.mark.parametrize("field", ["password", "token", "nkey_seed", "credentials", "tls_ca", "tls_private_key"])
def test_a_file_that_cannot_be_read_is_named_and_not_shown(field: str, tmp_path: Path) -> None:
    file = tmp_path / "hidden"
    for content, says in ((None, "No such file"), (b"", "empty"), (b"\n", "empty"), (b"\xff", "no text")):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidValue, match=says) as refused:
            read(field, f"file://{file}")
        assert refused.value.field == field
        assert "hidden" not in str(refused.value)
    with pytest.raises(InvalidValue, match="Is a directory"):
        read(field, f"file://{tmp_path}")


def test_pem_of_another_kind_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = (path.read_text() for path in authority.issue("localhost"))
    with pytest.raises(InvalidValue, match=r"tls_private_key=.*no block -----BEGIN PRIVATE KEY"):
        read_pem("tls_private_key", certificate, "PRIVATE KEY")
    exchanged = ConnectionSettings(tls_certificate=key, tls_private_key=certificate)
    with pytest.raises(InvalidValue, match=r"tls_certificate=.*no block -----BEGIN CERTIFICATE"):
        exchanged.ssl_context()
    stranger = authority.issue("stranger")[1].read_text()
    with pytest.raises(InvalidValue, match="belong together"):
        ConnectionSettings(tls_certificate=certificate, tls_private_key=stranger).ssl_context()


async def test_a_password_renewed_in_its_file_is_used_at_the_next_reconnect(tmp_path: Path) -> None:
    """While the file is away, the connection goes on trying."""

    def serve(password: str, port: int = 0) -> NatsServer:
        config = f'authorization {{ user: airflow, password: "{password}" }}'
        server = NatsServer(tmp_path / "nats", config, port=port)
        server.start()
        return server

    file = tmp_path / "password"
    file.write_text("first\n")
    server = serve("first")
    settings = ConnectionSettings(servers=server.url, user="airflow", password=f"file://{file}")
    try:
        async with connect(settings) as js:
            server.kill()
            file.unlink()
            server = serve("second", server.port)
            await asyncio.sleep(1)  # several attempts at a server that is there
            assert js.connection.reconnects == 0
            file.write_text("second\n")
            await until(lambda: js.connection.reconnects == 1)
            await js.connection.round_trip()
    finally:
        server.kill()
