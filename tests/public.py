"""What is public, and its reference: docs/reference/python/*.md, which ``make docs`` makes of the docstrings.

The pages are not committed: the site has them (docs/decisions/0023-reference-not-in-git.md). ``tests/test_public.py``
fails if a docstring does not describe a parameter, and ``tests/test_docs.py`` if a link to or from a page is dead.

A docstring describes parameters, fields and attributes in lines ``name:  description`` or ``first, second:
description``, continued with an indentation, or mentions them as ````name````. What a method, function or class does
not describe may be described by a base class, by the class of the method, or by what the docstring refers to with
``:meth:``, ``:func:`` or ``:class:``.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import textwrap
import types
from collections.abc import Iterator
from datetime import timedelta
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, is_typeddict

from pydantic import BaseModel

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "python"
PROSE, CODE = 100, 88  # columns
PACKAGES = (
    "airflow_nats_jetstream",
    "dagster_nats_jetstream",
    "jetstream_arrow",
    "jetstream_client",
    "jetstream_handoff",
    "jetstream_tables",
    "jetstream_testing",
    "pyspark_jetstream",
)
NOTICE = "<!-- Made of the docstrings by `make docs`: change the docstrings instead. -->"


class Page(NamedTuple):
    """A page of the reference: the public names of each module, in order; ``*`` for every class that it defines."""

    title: str
    about: str
    modules: dict[str, str]


PAGES = {
    "airflow": Page(
        "Airflow from Python",
        "Operators, sensors, the hook, and the claim that a task gets. [Operators and sensors](../operators.md) has an "
        "example of each, and what it returns. Parameters of Airflow's own base classes are not listed.",
        {
            "airflow_nats_jetstream.sensors": "JetStreamPullSensor JetStreamHoldSensor JetStreamLagSensor "
            "JetStreamKeySensor",
            "airflow_nats_jetstream.all_claims": "all_claims",
            "airflow_nats_jetstream.operators.process": "JetStreamProcessOperator jetstream_task",
            "pyspark_jetstream.held_claim": "HeldClaim",
            "airflow_nats_jetstream.holding": "holding JetStreamHeld",
            "airflow_nats_jetstream.operators.to_table": "JetStreamToTableOperator",
            "airflow_nats_jetstream.operators.settle": "JetStreamSettleOperator",
            "airflow_nats_jetstream.operators.spark_submit": "JetStreamSparkSubmitOperator",
            "airflow_nats_jetstream.operators.publish": "JetStreamPublishOperator",
            "airflow_nats_jetstream.operators.stream": "JetStreamCreateStreamOperator JetStreamPurgeOperator "
            "JetStreamDeleteStreamOperator",
            "airflow_nats_jetstream.operators.consumer": "JetStreamCreateConsumerOperator "
            "JetStreamPauseConsumerOperator JetStreamResumeConsumerOperator JetStreamResetConsumerOperator "
            "JetStreamDeleteConsumerOperator",
            "airflow_nats_jetstream.operators.partitions": "JetStreamPartitionStreamOperator",
            "airflow_nats_jetstream.operators.message": "JetStreamGetMessageOperator JetStreamDeleteMessageOperator",
            "airflow_nats_jetstream.operators.key": "JetStreamPutKeyOperator",
            "airflow_nats_jetstream.hooks": "JetStreamHook",
            "airflow_nats_jetstream.tables": "delta_table iceberg_table sql_table",
            "airflow_nats_jetstream.watcher": "JetStreamNoticeTrigger watched_assets",
            "airflow_nats_jetstream.lag": "JetStreamLagTrigger",
            "airflow_nats_jetstream.lineage_transport": "JetStreamTransport JetStreamConfig",
            "airflow_nats_jetstream.assets": "create_asset",
            "airflow_nats_jetstream.notifications": "JetStreamNotifier",
        },
    ),
    "dagster": Page(
        "Dagster from Python",
        "Assets and ops from claims, the sensor, the resource, the components, and the claim that a function gets. "
        "[Claims in Dagster](../dagster.md) has an overview.",
        {
            "dagster_nats_jetstream.assets": "claimed_asset",
            "dagster_nats_jetstream.ops": "take_claims claimed_op publish_messages purge_stream",
            "dagster_nats_jetstream.sensor": "jetstream_sensor",
            "dagster_nats_jetstream.lag": "jetstream_lag_sensor",
            "pyspark_jetstream.held_claim": "HeldClaim",
            "dagster_nats_jetstream.resource": "JetStreamResource",
            "dagster_nats_jetstream.component": "ClaimedAssetComponent JetStreamToTableComponent",
        },
    ),
    "arrow": Page(
        "Arrow from Python",
        "Decoding the messages that `claim.arrow()` reads, without Spark. [Process a claim with polars or "
        "DuckDB](../../how-to/polars-and-duckdb.md) has examples.",
        {"jetstream_arrow": "decoded"},
    ),
    "spark": Page(
        "Spark from Python",
        "The functions of the data source. [JetStream in Spark](../spark.md) describes its options and columns.",
        {"pyspark_jetstream": "spark_session decoded SchemaRegistry read_claim append_batch in_order DefaultSource"},
    ),
    "tables": Page(
        "Tables from Python",
        "What `claim.append_to` appends to, so that a table contains each message once. [The hand-off]"
        "(../../handoff.md#append-a-table-that-contains-each-message-once) has the rules.",
        {
            "jetstream_tables": "DeltaTable IcebergTable S3 SqlTable",
            "jetstream_tables.transaction": "Transaction",
            "jetstream_handoff.hold.table": "Appended",
        },
    ),
    "handoff": Page(
        "Claims from Python",
        "What claims and receipts contain, and taking claims without Airflow. [The hand-off](../../handoff.md) is the "
        "contract behind it.",
        {
            "jetstream_handoff.claim": "Claim",
            "jetstream_handoff.ledger.record": "Receipt",
            "jetstream_handoff.take.taking": "Taking",
            "jetstream_handoff.take.take": "Take",
            "jetstream_client.sequences": "Sequences",
        },
    ),
    "client": Page(
        "The client, call by call",
        "The classes and calls of `jetstream_client`. [JetStream from Python](../jetstream.md) explains how to use "
        "them, with examples.",
        {
            "jetstream_client": "connect ConnectionSettings Trace RequestSent ResponseReceived",
            "jetstream_client.context": "JetStream",
            "jetstream_client.account": "AccountInfo AccountLimits",
            "jetstream_client.stream": "Stream",
            "jetstream_client.info": "StreamInfo ConsumerInfo PauseState",
            "jetstream_client.read.message": "StoredMessage",
            "jetstream_client.consume.consumer": "Consumer",
            "jetstream_client.consume.pull_window": "Pulling",
            "jetstream_client.consume.priority": "Priority",
            "jetstream_client.consume.fetch": "Pull",
            "jetstream_client.consume.consuming": "PullMessages Consuming",
            "jetstream_client.consume.message": "Message",
            "jetstream_client.wire.protocol": "AckSubject",
            "jetstream_client.more.ordered": "OrderedConsumer",
            "jetstream_client.more.push": "PushConsumer",
            "jetstream_client.publish.ack": "PubAck",
            "jetstream_client.publish.options": "PublishOptions",
            "jetstream_client.publish.schedule": "Schedule",
            "jetstream_client.publish.batch": "Batch",
            "jetstream_client.more.fast_batch": "FastBatch",
            "jetstream_client.more.publish_async": "AsyncPublisher PublishFuture",
            "jetstream_client.more.route": "Route",
            "jetstream_client.publish.bulk": "publish_all publish_fast",
            "jetstream_client.publish.position": "Position",
            "jetstream_client.publish.window": "Published",
        },
    ),
    "testing": Page(
        "Tests from Python",
        "What the fixtures of the plugin for pytest give. [Test your DAGs](../../how-to/test-a-dag.md) lists the "
        "fixtures, and has examples.",
        {
            "jetstream_testing.stream": "StreamUnderTest ClaimUnderTest",
            "jetstream_testing.nats_server": "NatsServer NatsServerMissing",
        },
    ),
    "errors": Page(
        "Errors",
        "Every error of the packages.",
        {"jetstream_client.errors": "*", "jetstream_handoff.errors": "*", "airflow_nats_jetstream.errors": "*"},
    ),
}

MADE_BY_US = {
    *("HeldClaim", "JetStream", "Stream", "Consumer", "Pull", "PullMessages", "Consuming", "Message", "DefaultSource"),
    *("OrderedConsumer", "PushConsumer", "Batch", "FastBatch", "AsyncPublisher", "PublishFuture"),
}
"""Classes whose objects a call returns: their constructors are not public, and neither are those of errors."""

INTERNAL = {
    *("JetStream.configure", "JetStream.require", "Batch.append", "Batch.close", "AsyncPublisher.close"),
    *("FastBatch.keep_open", "FastBatch.deliver", "FastBatch.lost", "Pulling.by_bytes", "Pulling.limit"),
    *("PubAck.parse", "AckSubject.parse", "AckSubject.tokens", "AccountInfo.parse", "AccountLimits.parse"),
    *(
        "Route.parse",
        "ResponseReceived.of",
        "Trace.tell",
        "HeldClaim.begin",
        "HeldClaim.kill",
        "HeldClaim.on_read",
        "Schedule.headers",
    ),
    *("Consumer.pull_metadata", "JetStreamResource.take", "JetStreamResource.holding"),
}
"""Members that only the packages' own files use, by class, or by class and its module."""

CONFIGURED = {"BaseOperator", "BaseTrigger", "BaseNotifier"}
"""Airflow's bases of classes that a DAG only gives parameters to: Airflow calls their methods."""


class Entry(NamedTuple):
    """A public class, function or method; ``owner`` is the class of a method."""

    name: str
    module: str
    value: Any
    owner: type | None = None

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w\- ]", "", self.name.lower())

    @property
    def doc(self) -> str:
        return documentation(self.value)

    @property
    def kind(self) -> type | None:
        return self.value if isinstance(self.value, type) else None


def documentation(value: Any) -> str:
    """The docstring that was written for it. Dataclasses without one get their signature from Python."""
    if not isinstance(value, type):
        return inspect.getdoc(value) or ""
    written = vars(value).get("__doc__") or ""
    return "" if written.startswith(f"{value.__name__}(") else inspect.cleandoc(written)


def ours(kind: type) -> Iterator[type]:
    """A class and its bases, without those of frameworks, and without what pydantic makes of them (``Base[…]``)."""
    return (each for each in kind.__mro__ if each.__module__.startswith(PACKAGES) and "[" not in each.__name__)


def is_configured(kind: type) -> bool:
    return not CONFIGURED.isdisjoint(each.__name__ for each in kind.__mro__)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public functions and properties of a class, in the order of the source.

    What overrides a method of Airflow, Spark or Python is called by these, and left out.
    """
    seen = {name for each in kind.__mro__ if not each.__module__.startswith(PACKAGES) for name in vars(each)}
    for each in () if is_configured(kind) else ours(kind):
        for name, value in vars(each).items():
            short = f"{kind.__name__}.{name}"
            if name.startswith("_") or name in seen or not INTERNAL.isdisjoint({short, f"{kind.__module__}.{short}"}):
                continue
            seen.add(name)
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if isinstance(function, types.FunctionType | property | cached_property):
                yield name, function


def entries(page: Page) -> Iterator[Entry]:
    """What a page describes, in order. A class is followed by its methods."""
    for path, names in page.modules.items():
        module = import_module(path)
        for name in classes(module) if names == "*" else names.split():
            entry = Entry(name, path, getattr(module, name))
            yield entry
            if entry.kind is None or issubclass(entry.kind, BaseException):
                continue
            for member, value in members(entry.kind):
                if isinstance(value, types.FunctionType):
                    yield Entry(f"{name}.{member}", path, value, owner=entry.kind)


def classes(module: types.ModuleType) -> Iterator[str]:
    """The public classes that a module defines."""
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name


@cache
def everything() -> dict[str, list[Entry]]:
    """What is public, by page."""
    return {name: list(entries(page)) for name, page in PAGES.items()}


@cache
def targets() -> dict[str, tuple[str, Entry]]:
    """Where each public name is described: its page, and what it is. `home` tells names of two pages apart."""
    return {entry.name: (page, entry) for page, found in everything().items() for entry in found}


def home(entry: Entry) -> str:
    """The page on which something is described; empty for what is on none."""
    return next((name for name, page in PAGES.items() if entry.module in page.modules), "")


# Signatures


def parameters(entry: Entry) -> dict[str, inspect.Parameter]:
    """The public parameters of a call, by name. A class has those that it hands on to its bases, too."""
    if entry.kind is None:
        given = inspect.signature(entry.value).parameters
        return {name: each for name, each in given.items() if name not in {"self", "cls"}}
    if entry.name in MADE_BY_US or issubclass(entry.kind, BaseException):
        return {}
    if is_typeddict(entry.kind) or issubclass(entry.kind, BaseModel):
        only = inspect.Parameter.KEYWORD_ONLY
        own = {} if is_typeddict(entry.kind) else {**vars(entry.kind)["__pydantic_fields__"]}
        defaults = {name: each.default for name, each in own.items() if not each.is_required()}
        return {
            name: inspect.Parameter(name, only, annotation=type_, default=defaults.get(name, inspect.Parameter.empty))
            for name, type_ in fields(entry.kind).items()
        }
    found: dict[str, inspect.Parameter] = {}
    for kind in ours(entry.kind):
        made = vars(kind).get("__init__") or vars(kind).get("__new__")
        if made is None:
            continue
        _, *given_here = inspect.signature(made).parameters.values()
        more = [each for each in given_here if each.kind is each.VAR_KEYWORD]
        found |= {each.name: each for each in given_here if each not in more and each.name not in found}
        if not more:
            break
    return {name: each for name, each in found.items() if f"{entry.name}.{name}" not in INTERNAL}


def fields(kind: type) -> dict[str, Any]:
    """The public fields and other annotated attributes of a class, with their types."""
    found: dict[str, Any] = {}
    for each in reversed(list(ours(kind))):
        found |= vars(each).get("__annotations__", {})
    private = {name for name in found if name.startswith("_") or f"{kind.__name__}.{name}" in INTERNAL}
    return {name: type_ for name, type_ in found.items() if name not in private}


def shown_type(annotation: Any) -> str:
    known = getattr(annotation, "__forward_arg__", annotation)
    text = known if isinstance(known, str) else str(inspect.formatannotation(known))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def shown_default(value: Any) -> str:
    if isinstance(value, timedelta) and value:
        seconds = round(value.total_seconds())
        units = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
        unit = next(unit for unit, length in units.items() if seconds % length == 0)
        return f"timedelta({unit}={seconds // units[unit]})"
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return "..." if text.startswith("<") else text


def shown_parameter(each: inspect.Parameter) -> str:
    text = each.name
    if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
        text = f"{'*' if each.kind is each.VAR_POSITIONAL else '**'}{text}"
    if each.annotation is not each.empty:
        text += f": {shown_type(each.annotation)}"
    return text if each.default is each.empty else f"{text} = {shown_default(each.default)}"


def returned(function: Any) -> str:
    """The annotation; of a function behind ``contextmanager`` that of the context manager."""
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return ""
    text, inner = shown_type(annotation), inspect.unwrap(function)
    if inner is not function and (inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)):
        text = re.sub(r"^(Async)?Iterator\[", r"Abstract\1ContextManager[", text)
    return f" -> {text}"


def signature(entry: Entry) -> str:
    """The call, as in a stub; in one line if it fits."""
    given = list(parameters(entry).values())
    shown = [shown_parameter(each) for each in given]
    keywords = [each.kind is each.KEYWORD_ONLY for each in given]
    if any(keywords) and not any(each.kind is each.VAR_POSITIONAL for each in given):
        shown.insert(keywords.index(True), "*")
    name, after = entry.name.rpartition(".")[2], ""
    if entry.kind is None:
        name = f"{'async ' if inspect.iscoroutinefunction(entry.value) else ''}def {name}"
        after = returned(entry.value)
    line = f"{name}({', '.join(shown)}){after}"
    return line if len(line) <= CODE else f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){after}"


# Docstrings

_FIELD = re.compile(r"(\*{0,2}\w+(?:(?:, | / )\*{0,2}\w+)*):(?: +(.*))?$")
_ROLE = re.compile(r":(?:meth|class|func|attr|mod|data):`(~?)([^`]*)`")
_BLOCK = re.compile(r"\.\. code-block:: (\w+)\n")


class Said(NamedTuple):
    """A docstring: its prose by paragraph, the fields that it describes, and what it says of errors."""

    prose: list[str]
    fields: dict[str, str]
    raises: list[str]


def paragraphs(doc: str) -> Iterator[str]:
    """What is indented throughout belongs to the paragraph before it."""
    found: list[str] = []
    for text in re.split(r"\n\s*\n", doc):
        if found and text.startswith(" "):
            found[-1] += f"\n\n{text}"
        else:
            found.append(text)
    return iter(found)


def items(text: str) -> list[str]:
    """What begins at the margin, each with what is indented below it, in one line."""
    found: list[str] = []
    for line in text.splitlines():
        if found and (line.startswith(" ") or not line):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
    return [re.sub(r"\s+", " ", each).strip() for each in found]


def said(doc: str, known: set[str]) -> Said:
    """A docstring taken apart. ``known`` are the names that it may describe in a paragraph of one line."""
    result = Said([], {}, [])
    for paragraph in paragraphs(doc):
        first, _, rest = paragraph.partition("\n")
        listed = [_FIELD.match(each) for each in items(paragraph)]
        if first == "Raises:":
            result.raises.extend(items(textwrap.dedent(rest)))
        elif all(listed) and (rest or known & set(re.findall(r"\w+", first.partition(":")[0]))):
            for match in filter(None, listed):
                names = re.split(r", | / ", match[1].replace("*", ""))
                result.fields.update(dict.fromkeys(names, match[2] or ""))
        elif first:
            result.prose.append(paragraph)
    return result


def others(entry: Entry) -> Iterator[str]:
    """The docstrings that may describe parameters or fields of this one, too."""
    if kind := entry.kind or entry.owner:
        yield from (documentation(each) for each in ours(kind))
    seen, following = {entry.name}, [entry]
    for each in following:
        for _, name in _ROLE.findall(each.doc):
            target = target_of(name, each)
            if target is not None and target.name not in seen:
                seen.add(target.name)
                following += [target] if target.kind is None else []
                yield target.doc


def facts(entry: Entry) -> Said:
    """What the docstring says, with the fields that it leaves to others."""
    known = {*parameters(entry), *(fields(entry.kind) if entry.kind else ())}
    own = said(entry.doc, known)
    found: dict[str, str] = {}
    for doc in (entry.doc, *others(entry)):
        found = {**said(doc, known).fields, **found}
    return own._replace(fields=found)


def undescribed(entry: Entry) -> list[str]:
    """The public parameters and attributes that no docstring describes."""
    found = facts(entry)
    more = attributes(entry.kind, found) if entry.kind else {}
    described = {name for name, text in (found.fields | more).items() if text}
    mentioned = {name for doc in (entry.doc, *others(entry)) for name in re.findall(r"``(\w+)(?:\(\))?``", doc)}
    return [name for name in (*parameters(entry), *more) if name not in described | mentioned]


def target_of(name: str, entry: Entry) -> Entry | None:
    """What a role names: another method of the class, ``Class.method``, or one of these with its module."""
    parts = name.lstrip(".").split(".")
    for candidate in (f"{entry.name.partition('.')[0]}.{name}", ".".join(parts[-2:]), parts[-1]):
        near = [each for each in everything().get(home(entry), ()) if each.name == candidate]
        if near or candidate in targets():
            return near[0] if near else targets()[candidate][1]
    return None


# Markdown


def link(shown: str, target: Entry | None, page: str) -> str:
    if target is None:
        return f"`{shown}`"
    there = home(target)
    return f"[`{shown}`]({'' if there == page else f'{there}.md'}#{target.anchor})"


def markdown(text: str, entry: Entry, page: str) -> str:
    """The reStructuredText of a docstring: code, and roles and pages, which become links."""

    def role(match: re.Match[str]) -> str:
        short, name = match.groups()
        return link(name.rpartition(".")[2] if short else name.lstrip("."), target_of(name, entry), page)

    linked = re.sub(r"(?<!`)\bdocs/([\w/-]+\.md)", r"[docs/\1](../../\1)", _ROLE.sub(role, text))
    return linked.replace("``", "`")


def wrapped(text: str, begin: str = "") -> str:
    indent = " " * len(begin)
    return textwrap.fill(
        " ".join(text.split()), PROSE, initial_indent=begin, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def prose(paragraph: str, entry: Entry, page: str) -> Iterator[str]:
    """A list stays a list, and a block of code a block. What else is indented is a list of errors, or else code."""
    if block := _BLOCK.match(paragraph):
        yield f"```{block[1]}\n{textwrap.dedent(paragraph[block.end() :]).strip()}\n```"
        return
    if re.match(r"[*-] ", paragraph):
        yield "\n".join(wrapped(markdown(each[2:], entry, page), "- ") for each in items(paragraph))
        return
    text, _, code = paragraph.partition("\n    ")
    yield wrapped(markdown(text, entry, page).removesuffix(":" if text.endswith("::") else ""))
    code = textwrap.dedent(f"    {code}").strip()
    if code and all(map(_FIELD.match, items(code))):
        yield errors(items(code), entry, page)
    elif code:
        yield f"```\n{code}\n```"


def listed(found: dict[str, str], entry: Entry, page: str) -> str:
    """Names with descriptions; those that share one share a line."""
    names: dict[str, list[str]] = {}
    for name, text in found.items():
        names.setdefault(text, []).append(f"`{name}`")
    lines = (f"{', '.join(named)}: {markdown(text, entry, page)}" for text, named in names.items())
    return "\n".join(wrapped(line, "- ") for line in lines)


def errors(raises: list[str], entry: Entry, page: str) -> str:
    """What a docstring says below ``Raises:``, with links to the errors."""

    def linked(match: re.Match[str]) -> str:
        names = match[1].split(", ")
        return ", ".join(link(name, target_of(name, entry), page) for name in names) + match[2]

    lines = (re.sub(r"^(\w+(?:, \w+)*)(:|\.?$)", linked, text) for text in raises)
    return "\n".join(wrapped(markdown(line, entry, page), "- ") for line in lines)


def attributes(kind: type, found: Said) -> dict[str, str]:
    """Fields and properties with their descriptions. Those of operators and errors are not for their users."""
    if is_configured(kind) or issubclass(kind, BaseException):
        return {}
    own = {name: text for each in ours(kind) for name, text in notes(each).items()}
    for name, value in members(kind):
        if isinstance(value, property | cached_property):
            own[name] = documentation(value)
    return {name: own.get(name) or found.fields.get(name, "") for name in (*fields(kind), *own)}


def notes(kind: type) -> dict[str, str]:
    """The strings below attributes, in the body of the class and in ``__init__``."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    functions = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    bodies = [tree.body, *(each.body for each in functions)]
    found: dict[str, str] = {}
    for assigned, note in (pair for body in bodies for pair in pairwise(body)):
        if isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            for target in getattr(assigned, "targets", [getattr(assigned, "target", None)]):
                name = getattr(target, "attr", getattr(target, "id", "_"))
                found |= {} if name.startswith("_") else {name: str(note.value.value)}
    return found


def section(entry: Entry, page: str) -> Iterator[str]:
    found, given = facts(entry), parameters(entry)
    yield f"{'###' if entry.owner else '##'} {entry.name}"
    code = [] if entry.owner else [f"from {entry.module} import {entry.name}"]
    if given or entry.kind is None:
        code.append(signature(entry))
    yield "```python\n" + "\n\n".join(code) + "\n```"
    for paragraph in found.prose:
        yield from prose(paragraph, entry, page)
    more_of_airflow = entry.kind and is_configured(entry.kind)
    names = [*given, *(said(entry.doc, set()).fields if more_of_airflow else ())]
    if described := {name: found.fields[name] for name in names if found.fields.get(name)}:
        yield f"Parameters:\n\n{listed(described, entry, page)}"
    more = attributes(entry.kind, found) if entry.kind else {}
    if shown := {name: text for name, text in more.items() if text and name not in given}:
        yield f"Attributes:\n\n{listed(shown, entry, page)}"
    if found.raises:
        yield f"Raises:\n\n{errors(found.raises, entry, page)}"


def rendered(name: str) -> str:
    """A page in Markdown."""
    page = PAGES[name]
    parts = [f"# {page.title}", NOTICE, wrapped(page.about)]
    parts += (part for entry in everything()[name] for part in section(entry, name))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)  # a page that has another name now
    FOLDER.mkdir(parents=True)
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(rendered(name))
