"""A server that refuses each request with an answer that contains all of it, as Amazon's for a wrong signature."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Repeats(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        told = (
            f"<Error><Code>SignatureDoesNotMatch</Code><Message>{self.path} {self.headers} {body!r}</Message></Error>"
        )
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(told.encode())))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(told.encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - names of the library

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def repeats() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Repeats) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
