"""A credential in a file: it is read for each connection and reconnect, and errors name what is wrong."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.credential import path_of, read, read_pem
from tests.jetstream_client.servers import Authority
from tests.jetstream_client.until import until


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
    for content, says in ((None, "No such file"), (b"", "empty"), (b"\n", "empty"), (b"\xff", "not UTF-8")):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidValue, match=says) as refused:
            read(field, f"file://{file}")
        assert refused.value.field == field
        assert "hidden" not in str(refused.value)
    with pytest.raises(InvalidValue, match="not a regular file"):
        read(field, f"file://{tmp_path}")


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    """No path can block a process or fill its memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (64 * 1024 + 1))
    (tmp_path / "full").write_bytes(b"x" * 64 * 1024)
    for name, says in (
        ("/dev/zero", "regular file"),
        (f"{tmp_path}/pipe", "regular file"),
        (f"{tmp_path}/large", "64 KiB"),
    ):
        with pytest.raises(InvalidValue, match=says):
            read("tls_ca", name)
    assert len(read("tls_ca", str(tmp_path / "full"))) == 64 * 1024


def test_only_files_below_the_allowed_folders_are_read(tmp_path: Path) -> None:
    """This holds for links too, and does not show whether a file outside exists."""
    inside, outside, also = (tmp_path / name for name in ("inside", "outside", "also"))
    for folder in (inside / "deep", outside, also):
        folder.mkdir(parents=True)
        (folder / "token").write_text("found\n")
    (tmp_path / "link").symlink_to(inside)
    (inside / "mounted").symlink_to("deep/token")  # as Kubernetes mounts secrets
    (inside / "escape").symlink_to(outside / "token")
    (inside / "folder").symlink_to(outside)
    folders = f"{tmp_path}/link{os.pathsep}{also}{os.pathsep}/nowhere"
    for good in (f"{inside}/deep/token", f"{inside}/mounted", f"{tmp_path}/link/deep/token", f"{also}/token"):
        assert read("token", f"file://{good}", folders) == "found"
    refusals = set()
    for bad in (
        "outside/token",
        "outside/none",
        "inside/escape",
        "inside/folder/token",
        "inside/../outside/token",
        "insider",
    ):
        with pytest.raises(InvalidValue, match=r"outside .*credential_folders") as refused:
            read("token", f"file://{tmp_path}/{bad}", folders)
        refusals.add(str(refused.value))
    assert len(refusals) == 1
    with pytest.raises(InvalidValue, match="No such file"):
        read("token", f"file://{inside}/none", folders)
    with pytest.raises(InvalidValue, match="credential_folders"):
        read("token", f"file://{inside}/deep/token", "")


def test_a_link_that_changes_between_check_and_reading_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside / "deep", outside):
        folder.mkdir(parents=True)
        (folder / "token").write_text("hidden")
    real = os.open

    def exchanged(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "deep":  # after the check, and before opening
            (inside / "deep").rename(inside / "away")
            (inside / "deep").symlink_to(outside)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", exchanged)
    with pytest.raises(InvalidValue):
        read("token", f"file://{inside}/deep/token", str(inside))
    assert (inside / "deep").is_symlink()


def test_pem_is_found_in_linear_time() -> None:
    start = time.process_time()
    for hostile in ("-----BEGIN A-----" + " " * 60_000, ("-----BEGIN A----- " * 4_000), "-----BEGIN " + "A " * 30_000):
        with pytest.raises(InvalidValue):
            read_pem("tls_ca", hostile, "CERTIFICATE")
    assert time.process_time() - start < 1  # cubic: 4 KB took minutes


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
    """While the file is missing, the connection keeps trying."""

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
            await asyncio.sleep(1)  # several attempts at a running server
            assert js.connection.reconnects == 0
            file.write_text("second\n")
            await until(lambda: js.connection.reconnects == 1)
            await js.connection.round_trip()
    finally:
        server.kill()
