# SPDX-License-Identifier: Apache-2.0
"""TLS for the bulk connection, and the errors of failed handshakes for both connections."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from jetstream_client.errors import TlsFailed, TlsNotOffered

_RECORD = 1 << 14  # bytes in one TLS record, at most (RFC 8446, 5.1)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE")
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64  # X509_V_ERR_… of OpenSSL's x509_vfy.h


class TlsSocket:
    """A TLS connection that behaves like a plain non-blocking socket: ``BlockingIOError`` means "not now".

    All data that the ssl module has decrypted is returned by one call, so that poll on the descriptor misses no data.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._buffer = memoryview(b"")

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, data: memoryview) -> int:
        """Send. After BlockingIOError pass the same data again, because part of it may be encrypted already."""
        try:
            return self._connection.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes and the rest of the last record: one call of the ssl module returns one record."""
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
    """The likely reason why the server's first line has not arrived, with a remedy.

    handshake_first:  whether the client began with TLS. A server that does not expect this closes the connection,
                      sometimes before the client has read the server's first line.
    """
    if handshake_first:
        return (
            "the server ended the TLS handshake, or did not send the first line of the NATS protocol; set "
            "handshake_first on the server too, or remove tls_handshake_first here, and use the server's port for "
            "clients (4222)"
        )
    return (
        "the server did not send the first line of the NATS protocol; use the port for clients (4222), not the one for "
        "monitoring (8222), and set tls_handshake_first if the server has handshake_first"
    )


def check_plain(server: Mapping[str, Any]) -> None:
    """Raises TlsFailed if a server's INFO requires TLS. Call this if TLS is not set."""
    if server.get("tls_required"):
        raise TlsFailed("the server requires TLS; set tls, or use a tls:// address")


def tls_failure(error: ssl.SSLError) -> TlsFailed | None:
    """The error for a handshake that no other attempt can complete, with the remedy; None if the connection merely
    ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            remedy = "renew the server's certificate, or correct this machine's clock"
        elif error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            remedy = "in servers, use a host name that the certificate contains, or set tls_hostname to such a name"
        else:
            remedy = "set tls_ca to the certificate of the authority that signed it"
        return TlsFailed(f"the server's certificate is not accepted: {error.verify_message.rstrip('.')}; {remedy}")
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return TlsNotOffered(
            "TLS is set here, but the server answers without TLS, so no secret was sent. Enable TLS on the server "
            "(and handshake_first if tls_handshake_first is set here), or connect without TLS"
        )
    if "ALERT" not in reason:
        return None
    words = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
    return TlsFailed(
        f"the server ended the TLS handshake: {words}; if it requires a client certificate, set tls_certificate to a "
        "valid certificate that an authority of the server has signed, and tls_private_key to its key"
    )
