"""TLS for the bulk connection, and what a failed handshake of either driver means."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from jetstream_client.errors import TlsFailed, TlsNotOffered

_RECORD = 1 << 14  # bytes that one TLS record carries at most (RFC 8446, 5.1)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE")
_EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 10, 62, 64  # X509_V_ERR_… of OpenSSL's x509_vfy.h


class TlsSocket:
    """A TLS connection that behaves like a plain non-blocking socket: ``BlockingIOError`` means "not now".

    Whatever the ssl module has decrypted is handed out at once, so that poll on the descriptor tells the truth.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._buffer = memoryview(b"")

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, data: memoryview) -> int:
        """After BlockingIOError the same data must be given again: a part of it may be encrypted already."""
        try:
            return self._connection.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes and the rest of the last record: one call of the ssl module gives one record."""
        if len(self._buffer) < size + _RECORD:
            self._buffer = memoryview(bytearray(size + _RECORD))
        filled = 0
        try:
            while filled < size and (count := self._connection.recv_into(self._buffer[filled:])):
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        except OSError:
            if not filled:
                raise
        return bytes(self._buffer[:filled])


def silence(*, handshake_first: bool) -> str:
    """What a connection without the server's first line may mean. ``handshake_first``: ours asked for TLS before it; a
    server that does not expect that hangs up, sometimes before its own line is read."""
    if handshake_first:
        return (
            "it ends the TLS handshake, or says nothing: set handshake_first on the server if tls_handshake_first is "
            "set here; is this its port for clients (4222)?"
        )
    return (
        "it says nothing: is this the port for clients (4222), not the one for monitoring (8222)? If it waits for TLS "
        "(handshake_first), set tls_handshake_first"
    )


def check_plain(server: Mapping[str, Any]) -> None:
    """Raises TlsFailed when a server's INFO requires the TLS that was not asked for."""
    if server.get("tls_required"):
        raise TlsFailed("the server requires TLS: set tls, or use a tls:// address")


def tls_failure(error: ssl.SSLError) -> TlsFailed | None:
    """What no further attempt can mend, with what to fix; None for a connection that merely ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            remedy = "renew the server's certificate"
        elif error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            remedy = "name the server as its certificate does, or set tls_hostname to a name that it carries"
        else:
            remedy = "set tls_ca to the authority that signed it"
        return TlsFailed(f"the server's certificate is not accepted: {error.verify_message.rstrip('.')}; {remedy}")
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return TlsNotOffered(
            "TLS was asked for and the server answers without it: nothing secret was sent; enable TLS on the server, "
            "and its handshake_first if tls_handshake_first is set here, or ask for none"
        )
    if "ALERT" not in reason:
        return None
    words = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
    return TlsFailed(
        f"the server ended the TLS handshake: {words}; if it asks for a client certificate, set tls_certificate and "
        "tls_private_key to one that is valid and that its own authority signed"
    )
