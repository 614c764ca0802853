"""`make audit` fails when it cannot ask, when told of a vulnerability, and for a licence that is not on the list."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from demo.service import free_port

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UV_HTTP_RETRIES": "0", "UV_PYTHON": sys.executable}
    return subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_database_that_cannot_be_reached_is_a_failure() -> None:
    done = run("uv", "audit", "--locked", "--service-url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode
    assert "error" in done.stderr


def test_a_known_vulnerability_is_a_failure() -> None:
    found = {"id": "TEST-1", "modified": "2026-01-01T00:00:00Z"}

    class Osv(BaseHTTPRequestHandler):
        """The two questions of OSV's API: which packages have entries, and what an entry says."""

        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            self.answer({"results": [{"vulns": [found]}, *[{} for _ in queries[1:]]]})

        def do_GET(self) -> None:
            self.answer({**found, "schema_version": "1.7.0", "summary": "planted by the test", "affected": []})

        def answer(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Osv)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = run("uv", "audit", "--locked", "--service-url", f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode
    assert "TEST-1" in done.stdout + done.stderr


def test_a_licence_that_is_not_on_the_list_is_a_failure() -> None:
    assert run("pip-licenses").returncode == 0
    assert run("pip-licenses", "--allow-only", "MIT").returncode
