"""A proxy to a server that loses answers and ends connections."""

import math
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self


class Proxy:
    """Forwards connections to a port on 127.0.0.1, as a context manager.

    cut_after:  cut the connections once, after so many bytes of answers.
    stall_at:   stall the first connection on which the client sends these bytes: they and later bytes do not arrive.
    altered:    called with the server's data; what it returns arrives instead.
    """

    def __init__(
        self,
        port: int,
        *,
        cut_after: float = math.inf,
        stall_at: bytes | None = None,
        altered: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._target = port
        self._cut_after = cut_after
        self._stall_at = stall_at
        self._altered = altered
        self.stalled = threading.Event()
        self._answered = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"nats://127.0.0.1:{self._listening.getsockname()[1]}"
        self.muted = False
        self.cuts = 0

    @classmethod
    def leaving(cls, port: int) -> Self:
        """A proxy whose server names its real address in INFO, as the servers of a cluster name one another. When the
        proxy ends, this looks like a server that has left the cluster."""
        return cls(port, altered=lambda data: data.replace(b"INFO {", b'INFO {"connect_urls":["127.0.0.1:%d"],' % port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._close()

    def mute(self) -> None:
        """Lose everything that the server sends from now on, until :meth:`cut`."""
        self.muted = True

    def cut(self) -> None:
        """End all connections. Later connections work."""
        self.cuts += 1  # first, because another thread reads it
        self._close()
        self.muted = False

    def _close(self) -> None:
        while self._sockets:
            each = self._sockets.pop()
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(server)
                if self._listening.fileno() < 0:
                    break
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()
        if self._listening.fileno() < 0:  # it has ended in the meantime
            self._close()

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool = False) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not answers and self._stalls(data):
                    self.stalled.set()
                    while source.recv(1 << 16):
                        pass
                    break
                if not (answers and self.muted):
                    target.sendall(self._altered(data) if answers else data)
                if answers:
                    self._answered += len(data)
                if self._answered > self._cut_after and not self.cuts:
                    self.cut()
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _stalls(self, data: bytes) -> bool:
        return self._stall_at is not None and self._stall_at in data and not self.stalled.is_set()
