# SPDX-License-Identifier: Apache-2.0
"""Read the configuration of a stream or consumer from a DAG, and make the server's configuration match it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators.fields import Fields
from airflow_nats_jetstream.operators.values import Wrong
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
    """Base of the operators with a ``config``.

    config:        the configuration, with the server's own field names, as a mapping, a dataclass or the path of a
                   file. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    A file is read when the DAG is parsed. Its content becomes the value of the field, as with a ``.sql`` file in
    Airflow, so templates in the file are rendered. Airflow's own ``template_ext`` is not used, because it would also
    treat the subject ``orders.json`` inside a mapping as a file, and would log a missing file instead of raising an
    error.
    """

    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}
    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)
    _fields: ClassVar[Fields]
    _identity: ClassVar[tuple[str, ...]]  # the attributes that name the stream or consumer, with its own name last
    config: Any
    _file: str | None = None  # the file that ``config`` was read from
    _name: str | None = None  # the name for the link, once it is known

    def __init__(
        self, *, config: Configuration, nats_conn_id: str = JetStreamHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.nats_conn_id = nats_conn_id
        self.config = config
        if is_dataclass(self.config) and not isinstance(self.config, type):
            self.config = {name: value for name, value in asdict(self.config).items() if value is not None}
        if isinstance(self.config, Mapping):
            # Keep the same object: if it is another task's output, Airflow recognises it by its identity, and does not
            # render it.
            self._check(self.config, "", {})
        elif isinstance(self.config, str):
            if not templated(self.config):
                self._read(self.config)
        elif not templated(self.config):
            raise self._no_configuration(self.config)

    def resolve_template_files(self) -> None:
        """Read the file of an operator that was created without a DAG. Airflow calls this when the DAG is complete."""
        if isinstance(self.config, str) and self._file is None and not templated(self.config):
            self._read(self.config)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        wanted = self._wanted()
        changes = JetStreamHook(self.nats_conn_id).run(
            lambda js: create_or_update(
                self._handle(js, wanted["name"]), wanted, self._fields, lambda: self._create(js, wanted)
            )
        )
        self.log.info("%s %s", self._title(), self._describe(changes, "was"))
        names = {each: getattr(self, each) for each in self._identity}
        return {**names, "created": changes is None, "changed": sorted(changes or ())}

    def dry_run(self) -> None:
        """Print the changes that :meth:`execute` would make."""
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
        """Return the beginning of a log line: ``consumer invoices of ORDERS``."""
        *stream, name = (getattr(self, each) for each in self._identity)
        return " of ".join([f"{self._fields.what} {name}", *stream])

    def _wanted(self) -> dict[str, Any]:
        """Return the configuration, rendered and checked. Raises InvalidValue."""
        config, shown = self.config, ""
        lines: Lines = {}
        if isinstance(config, str):
            from airflow_nats_jetstream.operators.configuration_file import parse, read

            shown = self._file or ""
            if not shown and config.endswith(FILES) and "\n" not in config:
                shown, config = config, read(self._path(config) or Path(config), config)
            config, lines = parse(config, shown or "the rendered config")
        wanted = self._check(config, shown, lines, rendered=True)
        self._name = str(wanted["name"])
        return wanted

    def _read(self, path: str) -> None:
        from airflow_nats_jetstream.operators.configuration_file import parse, read

        if not path.endswith(FILES):
            raise self._no_configuration(path)
        found = self._path(path)
        if found is None:
            return  # the path is relative to the file of a DAG that is not known yet
        text = read(found, path)
        if templated(text):
            self.config, self._file = text, path
        else:
            config, lines = parse(text, path)
            self._check(config, path, lines)
            self.config = config

    def _path(self, path: str) -> Path | None:
        """Return the path next to the DAG's file or in its ``template_searchpath``; None without a DAG."""
        if Path(path).is_absolute():
            return Path(path)
        if not self.has_dag():  # type: ignore[no-untyped-call]
            return None
        places = [self.dag.folder, *(self.dag.template_searchpath or ())]
        found = [Path(place, path) for place in places]
        return next((each for each in found if each.is_file()), found[0])

    def _check(self, config: Any, shown: str, lines: Lines, *, rendered: bool = False) -> dict[str, Any]:
        """Return the fields as the server accepts them. An error names file, line, field, value and remedy."""

        def place(path: tuple[str | int, ...]) -> str:
            if not shown:
                return "config" + "".join(f"[{each!r}]" for each in path)
            line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
            field = str(path[0]) + "".join(f"[{each!r}]" for each in path[1:]) if path else "config"
            return f"{shown}:{line}: {field}" if line else f"{shown}: {field}"

        if not isinstance(config, Mapping):
            remedy = f"a {self._fields.what} configuration must be a mapping of fields, not a value of this type"
            raise InvalidValue(place(()), type(config), remedy)
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
        """Check names and subjects by JetStream's rules. Raises InvalidValue."""
        raise NotImplementedError

    def _no_configuration(self, value: object) -> InvalidValue:
        remedy = f"give a mapping, a dataclass, or the path of a file whose name ends in {' or '.join(FILES)}"
        return InvalidValue("config", value if isinstance(value, str) else type(value), remedy)

    def _describe(self, changes: Difference | None, verb: str) -> str:
        """Describe the changes that :func:`create_or_update` made or would make."""
        if changes is None:
            return f"{verb} created"
        return f"{verb} updated:\n{self._fields.describe(changes)}" if changes else "is up to date"


async def current(handle: Stream | Consumer, fields: Fields) -> Mapping[str, Any] | None:
    """Return the configuration on the server, or None if the stream or consumer does not exist.

    handle:  the stream or consumer. A consumer's stream must exist.
    fields:  the fields of its kind of configuration.

    Raises:
        StreamNotFound: the stream of the consumer does not exist.
    """
    try:
        return (await handle.info()).config
    except (StreamNotFound, ConsumerNotFound) as missing:
        if isinstance(missing, StreamNotFound) and fields.what != "stream":
            raise
        return None


async def create_or_update(
    handle: Stream | Consumer, wanted: Mapping[str, Any], fields: Fields, create: Callable[[], Awaitable[Any]]
) -> Difference | None:
    """Create a stream or consumer, or change the fields that differ from ``wanted``.

    Returns the fields that changed, or None if the stream or consumer was created. If the server left a field unchanged
    although a change was requested, the result does not contain the field: a requested 0 may stand for the default that
    the field already has.

    handle:  the stream or consumer.
    wanted:  the fields that the stream or consumer should have; all other fields stay unchanged.
    fields:  the fields of its kind of configuration.
    create:  called without arguments to create the stream or consumer.

    Raises:
        UpdateRefused: the server refuses the change. The error names the field, its current and its requested value,
            and the remedy.
        ApiError: the server refuses to create the stream or consumer.
    """
    before = await current(handle, fields)
    if before is None:
        try:
            await create()
        except (StreamNameInUse, ConsumerNameInUse):  # another client created it in the meantime
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
