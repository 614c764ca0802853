# SPDX-License-Identifier: Apache-2.0
"""Schema registries: their framing of payloads, and the schemas that payloads name by id.

The driver asks the registry, once for each ``decoded``, and the executors get its answers with
the plan. If executors asked, the decoded and the malformed messages, which Spark computes at different times, could
disagree about an id that was registered in between, and the message would be in neither of them. Another advantage is
that the password stays in the process of the driver.
"""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NoReturn, Self, get_args

from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_client.wire import credential

log = logging.getLogger(__name__)

Ask = Callable[["SchemaRegistry", str, str | None], "Answers"]
"""Asks a registry for each id in the messages: called with the registry, the framing, and the form as for
:meth:`SchemaRegistry.schema`."""

Framing = Literal["none", "confluent", "apicurio", "single-object"]

ID_BYTES: dict[str, int] = {"confluent": 4, "apicurio": 8}
"""The number of bytes of the schema's id after the byte 0x00, for each framing of a registry."""
_LARGEST = {"confluent": 2**31 - 1, "apicurio": 2**63 - 1}  # ids are Java's int and long, and begin with 1
MOST_IDS = 1000
"""The largest number of different ids of one batch of messages for which the registry is asked."""
_LONGEST_TIMEOUT = 600
_ADDRESS = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?(?:/[\w./~-]*)?", re.ASCII)
_INSTALL = "a schema registry needs confluent-kafka; install airflow-provider-nats-jetstream[registry] on the driver"


class SchemaRegistryFailed(JetStreamError):
    """The schema registry could not be asked, or its answer cannot be used. Says nothing about a message."""


@dataclass(frozen=True)
class Registered:
    """A schema as the registry has it.

    kind:        ``AVRO``, ``PROTOBUF`` or ``JSON``.
    text:        the schema.
    references:  name and text of each schema that this one refers to, each after those that it refers to itself.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry with the HTTP interface of Confluent's registry, which Karapace, Redpanda and Apicurio
    (``https://…/apis/ccompat/v7``) also have. Its ``repr`` shows no secret, and it cannot be pickled, so that no plan
    of Spark can contain its secrets. Make it in the task's function.

    url:          address of the registry, without user information; several are separated by commas.
    username, password:
                  the user, or the key and secret of an API key. ``file:///…`` as a password names the file that
                  contains it.
    token:        a bearer token, in place of ``username`` and ``password``; ``file:///…`` names its file.
    ca:           path of a PEM file with the certificate authorities to trust. Default None: those of
                  ``SSL_CERT_FILE``, or Mozilla's.
    certificate, private_key:
                  paths of PEM files with a client certificate and its key. Default None: no client certificate.
    timeout:      seconds to wait for each answer. Default 10. A request without an answer is repeated three times.

    Raises:
        InvalidValue: the address contains user information or is not an HTTP address, or the fields contradict each
            other.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    timeout: float = 10

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or "@" in self.url:
            raise InvalidValue("url", "…", "give the address of the registry, and username and password as such")
        for url in self.url.split(","):
            if not _ADDRESS.fullmatch(url.strip()):
                raise InvalidValue("url", "…", "give an address like https://registry:8081, without a query")
        if self.token and self.username:
            raise InvalidValue("token", "…", "give either a token, or username and password")
        if bool(self.username) != bool(self.password):
            raise InvalidValue("username" if self.password else "password", None, "give username and password together")
        if self.username and ":" in self.username:
            raise InvalidValue("username", self.username, "HTTP does not allow a colon in it")
        if bool(self.certificate) != bool(self.private_key):
            missing = "private_key" if self.certificate else "certificate"
            raise InvalidValue(missing, None, "give certificate and private_key together")
        if not (isinstance(self.timeout, (int, float)) and 0 < self.timeout <= _LONGEST_TIMEOUT):
            raise InvalidValue("timeout", self.timeout, f"give more than 0 and at most {_LONGEST_TIMEOUT} seconds")

    def __reduce__(self) -> NoReturn:
        remedy = "its secrets would be sent with it; make it in the function that uses it"
        raise InvalidValue("registry", self.url, f"a SchemaRegistry cannot be pickled, because {remedy}")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    @cached_property
    def _secret(self) -> str:
        """The password or the token, from its file if there is one."""
        return credential.read("token", self.token) if self.token else credential.read("password", self.password or "")

    @cached_property
    def _client(self) -> Any:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ModuleNotFoundError as missing:
            raise InvalidValue("registry", self.url, _INSTALL) from missing
        settings: dict[str, object] = {
            "url": self.url,
            "timeout": self.timeout,
            "retries.wait.ms": 500,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.private_key,
        }
        if self.username:
            settings["basic.auth.user.info"] = f"{self.username}:{self._secret}"
        if self.token:
            settings["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            settings["bearer.auth.token"] = self._secret
            settings["bearer.auth.logical.cluster"] = ""  # the client requires it; only Confluent Cloud uses it
        try:
            return SchemaRegistryClient({name: value for name, value in settings.items() if value is not None})
        except (OSError, ValueError) as wrong:  # a file cannot be read, or is not PEM
            raise InvalidValue("registry", self.url, f"{wrong}; check ca, certificate and private_key") from None

    @cached_property
    def _known(self) -> dict[tuple[int, str | None], Registered]:
        """Schemas by id. An id always means the same schema, so that they can be kept."""
        return {}

    def schema(self, number: int, form: str | None = None) -> Registered | None:
        """Return the schema with this id, and None if the registry has none. Blocking.

        number:  the id.
        form:    ``serialized`` for a Protobuf schema as a descriptor in base64. Default None: as it was registered.

        Raises:
            SchemaRegistryFailed: the registry does not answer, refuses the request, or cannot say.
        """
        if found := self._known.get((number, form)):
            return found
        asked = f"schema id {number}"
        if form is not None:
            self._client.clear_caches()  # they do not tell forms apart
        schema = self._ask(asked, "get_schema", number, fmt=form)
        if schema is None:
            return None
        references: dict[str, str] = {}
        self._add_references(schema, references, asked, form)
        found = Registered(schema.schema_type or "AVRO", schema.schema_str, tuple(references.items()))
        if len(self._known) >= MOST_IDS:
            self._known.clear()
            self._client.clear_caches()
        self._known[number, form] = found
        return found

    def _add_references(self, schema: Any, found: dict[str, str], asked: str, form: str | None) -> None:
        for each in schema.references or ():
            if each.name in found:
                continue
            name = f"{each.name!r} (subject {each.subject!r}, version {each.version}), to which {asked} refers"
            referred = self._ask(name, "get_version", each.subject, each.version, deleted=True, fmt=form)
            if referred is None:
                raise SchemaRegistryFailed(f"the schema registry {self.url} does not have {name}; register it again")
            self._add_references(referred.schema, found, asked, form)
            found[each.name] = referred.schema.schema_str

    def _ask(self, what: str, method: str, *arguments: object, **named: object) -> Any:
        """Return what a method of the client returns; None if the registry itself says that it does not have this."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        client = self._client
        try:
            return getattr(client, method)(*arguments, **named)
        except SchemaRegistryError as answer:
            # 40401 to 40403 are the registry's own codes. A wrong path has no such code.
            if answer.http_status_code == 404 and answer.error_code in (40401, 40402, 40403):
                return None
            why = f"HTTP status {answer.http_status_code}: {self._without_secrets(answer.error_message)}"
        except Exception as error:  # noqa: BLE001 - those of its HTTP client, of JSON, and of an answer without a schema
            why = f"{type(error).__name__}: {self._without_secrets(error)}"
        remedy = "check url, username, password and token, and whether the registry is running; no message was rejected"
        raise SchemaRegistryFailed(f"the schema registry {self.url} did not answer for {what}: {why}; {remedy}")

    def _without_secrets(self, said: object) -> str:
        """Text of the registry, or of something in its place, which may repeat a request with its header."""
        text = str(said)
        if self._secret:
            for secret in (b64encode(f"{self.username}:{self._secret}".encode()).decode(), self._secret):
                text = text.replace(secret, "…")
        return re.sub(r"\s+", " ", text)[:300]


@dataclass(frozen=True)
class Written:
    """What the caller has stated about how the messages were written; the fields are those of
    ``decoded``."""

    registry: SchemaRegistry | None = None
    framing: Framing | None = None
    writer_schema: str | Sequence[str] | None = None

    @property
    def given(self) -> list[str]:
        """The names of the fields that are given."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    def checked_framing(self) -> Framing | None:
        """Return the framing; with a registry, Confluent's is the default. Raises InvalidValue."""
        if self.framing not in (None, *get_args(Framing)):
            known = ", ".join(map(repr, get_args(Framing)))
            raise InvalidValue("framing", self.framing, f"give one of {known}, or leave it out")
        if self.registry is None:
            if self.framing in ID_BYTES:
                raise InvalidValue("framing", self.framing, "the payloads contain ids of schemas; give registry=…, too")
            return self.framing
        if not isinstance(self.registry, SchemaRegistry):
            raise InvalidValue("registry", type(self.registry).__name__, "give a SchemaRegistry")
        if self.writer_schema is not None:
            raise InvalidValue("writer_schema", "…", "the registry has the writers' schemas; leave it out")
        if self.framing not in (None, *ID_BYTES):
            remedy = (
                "with a registry, give 'confluent' (default) or 'apicurio', because the payloads name their schemas"
            )
            raise InvalidValue("framing", self.framing, remedy)
        return self.framing or "confluent"


@dataclass(frozen=True)
class Answers:
    """What the registry has answered for the ids of a batch of messages, for use on executors.

    schemas:  the schemas by id.
    unknown:  ids that the registry does not know.
    most:     whether there are more ids, for which it was not asked.
    """

    schemas: Mapping[int, Registered]
    unknown: frozenset[int] = frozenset()
    more: bool = False

    def find(self, number: int, framing: str) -> Registered | str:
        """Return the schema with an id, or the reason why a message with this id is malformed.

        Raises:
            SchemaRegistryFailed: the registry was not asked for this id, because the messages have changed.
        """
        if found := self.schemas.get(number):
            return found
        if number == 0 and framing == "confluent":
            return "schema id 0, which no registry has; if the ids have 8 bytes, give framing='apicurio'"
        if number in self.unknown or not 0 < number <= _LARGEST[framing]:
            hint = "; if the ids have 4 bytes, give framing='confluent'" if number >= 2**32 else ""
            return f"the schema registry does not know schema id {number}{hint}"
        if self.more:
            return f"schema id {number} is not among the {MOST_IDS} most frequent ids of these messages"
        raise SchemaRegistryFailed(
            f"schema id {number} was not in the messages when decoded() was called; make the DataFrame again, and call"
            " decoded() on it"
        )


def answers(registry: SchemaRegistry, numbers: Sequence[int], framing: str, form: str | None = None) -> Answers:
    """Ask the registry for these ids, the most frequent ones first. Raises SchemaRegistryFailed."""
    if more := len(numbers) > MOST_IDS:
        log.warning("the messages contain more than %s schema ids; those with other ids are malformed", MOST_IDS)
        numbers = numbers[:MOST_IDS]
    found = {each: registry.schema(each, form) for each in numbers if 0 < each <= _LARGEST[framing]}
    known = {number: schema for number, schema in found.items() if schema is not None}
    return Answers(known, frozenset(found.keys() - known.keys()), more)


def framed(payload: bytes, framing: str) -> tuple[int, int] | None:
    """Return the schema's id and where the data begins, or None if a payload does not have this framing."""
    size = 1 + ID_BYTES[framing]
    return (int.from_bytes(payload[1:size], "big"), size) if payload[:1] == b"\0" and len(payload) >= size else None


def looks_framed(payload: bytes) -> int | None:
    """Return the id of the schema, if a payload may have the framing of a registry and has at least a byte of data.

    An id below 2**24 is assumed, because a payload may well begin with one zero byte, and no registry has 16 million
    schemas: the payload then begins with two zero bytes, or with six.
    """
    if not payload.startswith(b"\0\0"):
        return None
    for framing, size in ID_BYTES.items():
        found = framed(payload, framing)
        if found and 0 < found[0] < 1 << 24 and len(payload) > 1 + size:
            return found[0]
    return None
