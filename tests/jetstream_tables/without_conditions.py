"""An S3 server as it would be if it ignored the conditions of a put, as older ones do: a proxy that leaves them out.

It takes unsigned requests. It is a process, because delta-rs keeps other threads of its own process from running while
it waits for some of its requests.
"""

import socket
import sys
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from jetstream_testing.service import Service, free_port


class WithoutConditions(Service):
    """A proxy on 127.0.0.1 for the server that listens on a port."""

    def __init__(self, folder: Path, server: int) -> None:
        self.port = free_port()
        command = [sys.executable, __file__, str(self.port), str(server)]
        super().__init__("without-conditions", command, folder=folder)

    def ready(self) -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


class _Forwards(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        left_out = {"host", "if-none-match", "if-match"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        with closing(HTTPConnection("127.0.0.1", int(sys.argv[2]))) as server:
            server.request(self.command, self.path, body, headers)
            answer = server.getresponse()
            data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "date", "server", "content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 - names of the library


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Forwards).serve_forever()
