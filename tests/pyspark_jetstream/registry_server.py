"""A schema registry over HTTP, with the documented answers of Confluent's registry.

It is a stand-in: Confluent's, Apicurio's and Redpanda's registries are not in the package indexes from which this
project installs its tests. What asks it is real: the registry client of confluent-kafka, over real sockets. It answers
only what reading and Confluent's serializer need.
"""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

NOT_FOUND = {"subject": 40401, "version": 40402, "schema": 40403}


class RegistryServer:
    """The registry, and what a test can change.

    requests:  the paths that were asked for.
    failures:  HTTP statuses that the next requests get instead of an answer.
    user:      the ``user:password`` that each request must have; ``token`` the bearer token.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.failures: list[int] = []
        self.user: str | None = None
        self.token: str | None = None
        self.serialized: dict[str, str] = {}  # source of a Protobuf schema → its descriptor in base64
        self._schemas: dict[int, dict[str, Any]] = {}
        self._versions: dict[tuple[str, str], int] = {}

    def register(
        self, subject: str, schema: object, kind: str = "AVRO", references: object = (), number: int | None = None
    ) -> int:
        """Register the next version of a subject. Returns its id, which is the next one unless ``number`` is given."""
        number = number or max(self._schemas, default=0) + 1
        found: dict[str, Any] = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = references
        self._schemas[number] = found
        version = 1 + sum(known == subject for known, _ in self._versions)
        self._versions[subject, str(version)] = number
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.requests.append(path)
        if self.failures:
            status = self.failures.pop(0)
            return status, {"error_code": status, "message": f"HTTP {status}"}
        basic = self.user and "Basic " + b64encode(self.user.encode()).decode()
        expected = basic or (self.token and f"Bearer {self.token}")
        if expected and authorization != expected:
            return 401, {"error_code": 401, "message": f"Unauthorized: {authorization}"}
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                found = self._schemas.get(int(number))
                return (200, found) if found else (404, self._missing("schema", number))
            case ["subjects", subject, "versions", version]:
                return self._version(subject, version)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def answer_in_form(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Answer a request, with the descriptor of a Protobuf schema if ``format=serialized`` asks for it."""
        status, found = self.answer(path, authorization)
        text = found.get("schema")
        if "format=serialized" in urlsplit(path).query and text in self.serialized:
            found = {**found, "schema": self.serialized[text]}
        return status, found

    def _version(self, subject: str, version: str) -> tuple[int, dict[str, Any]]:
        known = [each for name, each in self._versions if name == subject]
        if not known:
            return 404, self._missing("subject", subject)
        version = known[-1] if version == "latest" else version
        if version not in known:
            return 404, self._missing("version", version)
        number = self._versions[subject, version]
        return 200, {"subject": subject, "version": int(version), "id": number, **self._schemas[number]}

    @staticmethod
    def _missing(what: str, name: str) -> dict[str, Any]:
        return {"error_code": NOT_FOUND[what], "message": f"{what.title()} {name} not found"}


@contextmanager
def registry_server(tls: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Run a registry on a free port."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = registry.answer_in_form(self.path, self.headers["Authorization"])
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    registry.url = f"{'https' if tls else 'http'}://localhost:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
