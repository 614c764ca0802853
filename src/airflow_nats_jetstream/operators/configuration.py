"""A stream's or consumer's configuration as a DAG gives it, and making the server agree with it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators.fields import Fields, Wrong
from airflow_nats_jetstream.template import templated
from jetstream_client.config import Difference, difference
from jetstream_client.errors import (
    ApiError,
    ConsumerNameInUse,
    ConsumerNotFound,
    InvalidRequest,
    InvalidValue,
    JetStreamNotEnabled,
    StreamNameInUse,
    StreamNotFound,
    UpdateRefused,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_nats_jetstream.operators.configuration_file import Lines
    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.context import JetStream
    from jetstream_client.stream import Stream

Configuration = Mapping[str, Any] | object | str
"""A mapping, a dataclass, or the path of a file."""

FILES = (".yaml", ".yml", ".json")


class ConfigurationOperator(BaseOperator):
    """An operator with a ``config``: the server's own field names, as a mapping, a dataclass or a file.

    A file is read when the DAG is parsed. It becomes the field's value, as Airflow does it with a ``.sql`` file, so
    what is templated in it is rendered. Airflow's own ``template_ext`` is not used for it: it would take the subject
    ``orders.json`` inside a mapping for a file, too, and a missing file would only be logged.
    """

    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}
    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)
    _fields: ClassVar[Fields]
    _identity: ClassVar[tuple[str, ...]]  # the attributes that name it, its own last
    config: Any
    _file: str | None = None  # whose text ``config`` is
    _name: str | None = None  # once it is known: for the link

    def __init__(
        self, *, config: Configuration, nats_conn_id: str = JetStreamHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.nats_conn_id = nats_conn_id
        self.config = config
        if is_dataclass(self.config) and not isinstance(self.config, type):
            self.config = {name: value for name, value in asdict(self.config).items() if value is not None}
        if isinstance(self.config, Mapping):
            # It stays the same object: Airflow knows by it what came from another task, and renders nothing of that.
            self._check(self.config, "", {})
        elif isinstance(self.config, str):
            if not templated(self.config):
                self._read(self.config)
        elif not templated(self.config):
            raise self._no_configuration(self.config)

    def resolve_template_files(self) -> None:
        """Airflow calls it when the DAG is complete: of an operator that was made outside of it, too."""
        if isinstance(self.config, str) and self._file is None and not templated(self.config):
            self._read(self.config)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        wanted = self._wanted()
        changes = JetStreamHook(self.nats_conn_id).run(
            lambda js: create_or_update(
                self._handle(js, wanted["name"]), wanted, self._fields, lambda: self._create(js, wanted)
            )
        )
        self.log.info("%s %s", self._title(), self._describe(changes, "is"))
        names = {each: getattr(self, each) for each in self._identity}
        return {**names, "created": changes is None, "changed": sorted(changes or ())}

    def dry_run(self) -> None:
        """Print what :meth:`execute` would change."""
        wanted = self._wanted()
        name = wanted["name"]
        found = JetStreamHook(self.nats_conn_id).run(lambda js: current(self._handle(js, name), self._fields))
        changes = None if found is None else difference(found, wanted)
        self.log.info("%s %s", self._title(), self._describe(changes, "would be"))

    def _handle(self, js: JetStream, name: str) -> Stream | Consumer:
        raise NotImplementedError

    def _create(self, js: JetStream, wanted: dict[str, Any]) -> Awaitable[Any]:
        raise NotImplementedError

    def _title(self) -> str:
        """What log lines begin with: ``consumer invoices of ORDERS``."""
        *stream, name = (getattr(self, each) for each in self._identity)
        return " of ".join([f"{self._fields.what} {name}", *stream])

    def _wanted(self) -> dict[str, Any]:
        """The configuration, rendered and checked. Raises InvalidValue."""
        config, shown = self.config, ""
        lines: Lines = {}
        if isinstance(config, str):
            from airflow_nats_jetstream.operators.configuration_file import parse, read

            shown = self._file or ""
            if not shown and config.endswith(FILES) and "\n" not in config:
                shown, config = config, read(self._path(config) or Path(config), config)
            config, lines = parse(config, shown or "config")
        wanted = self._check(config, shown, lines, rendered=True)
        self._name = str(wanted["name"])
        return wanted

    def _read(self, path: str) -> None:
        from airflow_nats_jetstream.operators.configuration_file import parse, read

        if not path.endswith(FILES):
            raise self._no_configuration(path)
        found = self._path(path)
        if found is None:
            return  # there is no DAG yet to which it is relative
        text = read(found, path)
        if templated(text):
            self.config, self._file = text, path
        else:
            config, lines = parse(text, path)
            self._check(config, path, lines)
            self.config = config

    def _path(self, path: str) -> Path | None:
        """Beside the DAG's file, or on its ``template_searchpath``; None without a DAG."""
        if Path(path).is_absolute():
            return Path(path)
        if not self.has_dag():  # type: ignore[no-untyped-call]
            return None
        places = [self.dag.folder, *(self.dag.template_searchpath or ())]
        found = [Path(place, path) for place in places]
        return next((each for each in found if each.is_file()), found[0])

    def _check(self, config: Any, shown: str, lines: Lines, *, rendered: bool = False) -> dict[str, Any]:
        """The fields in the server's terms; an error names the file, its line, the field, its value and a remedy."""

        def place(path: tuple[str | int, ...]) -> str:
            if not shown:
                return "config" + "".join(f"[{each!r}]" for each in path)
            line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
            field = str(path[0]) + "".join(f"[{each!r}]" for each in path[1:]) if path else "config"
            return f"{shown}:{line}: {field}" if line else f"{shown}: {field}"

        if not isinstance(config, Mapping):
            raise InvalidValue(place(()), type(config).__name__, f"a {self._fields.what} configuration is a mapping")
        try:
            checked = self._fields.check(config)
        except Wrong as wrong:
            raise InvalidValue(place(wrong.path), wrong.value, wrong.remedy) from None
        if templated(config) and not rendered:
            return checked
        try:
            return self._checked(checked)
        except InvalidValue as error:
            field = re.fullmatch(r"config\['(\w+)'\].*", error.field)
            raise InvalidValue(place((field[1],) if field else ()), error.value, error.remedy) from None

    def _checked(self, config: dict[str, Any]) -> dict[str, Any]:
        """What JetStream forbids in names and subjects. Raises InvalidValue."""
        raise NotImplementedError

    def _no_configuration(self, value: object) -> InvalidValue:
        remedy = f"a mapping, a dataclass, or the path of a file ({', '.join(FILES)}) is a {self._fields.what}'s config"
        return InvalidValue("config", value if isinstance(value, str) else type(value).__name__, remedy)

    def _describe(self, changes: Difference | None, verb: str) -> str:
        """What :func:`create_or_update` did or would do, in words."""
        if changes is None:
            return f"{verb} created"
        return f"{verb} updated:\n{self._fields.describe(changes)}" if changes else "is up to date"


async def current(handle: Stream | Consumer, fields: Fields) -> Mapping[str, Any] | None:
    """The configuration on the server; None if it does not exist. A consumer's stream must exist."""
    try:
        return (await handle.info()).config
    except (StreamNotFound, ConsumerNotFound) as missing:
        if isinstance(missing, StreamNotFound) and fields.what != "stream":
            raise
        return None


async def create_or_update(
    handle: Stream | Consumer, wanted: Mapping[str, Any], fields: Fields, create: Callable[[], Awaitable[Any]]
) -> Difference | None:
    """Create what is missing, or change what differs; what was changed, and ``None`` when it was created.

    What the server leaves as it is although it was asked for has not changed: 0 may stand for a default.

    Raises:
        UpdateRefused: names the field, its value, the wanted value, and what to do.
        ApiError: the creation is refused.
    """
    before = await current(handle, fields)
    if before is None:
        try:
            await create()
        except (StreamNameInUse, ConsumerNameInUse):  # somebody else was faster
            before = (await handle.info()).config
        else:
            return None
    changes = difference(before, wanted)
    if not changes:
        return {}
    try:
        after = (await handle.update(wanted)).config
    except (StreamNotFound, ConsumerNotFound, InvalidRequest, JetStreamNotEnabled):
        raise
    except ApiError as error:
        named, remedy = fields.refused(error.description, changes)
        what = f"{fields.what} {handle.name!r}"
        raise UpdateRefused(error, what, {name: changes[name] for name in named}, remedy) from error
    done = {name: (old, after.get(name)) for name, (old, _) in changes.items()}
    return {name: (old, new) for name, (old, new) in done.items() if difference({name: old}, {name: new})}
