# SPDX-License-Identifier: Apache-2.0
"""The listener that publishes every change of a DAG run, a task instance and an asset, if the section
``[jetstream_events]`` of Airflow's configuration names a connection.

Airflow calls listeners in workers, the scheduler, the api-server, the triggerer and the DAG processor. So nothing here
waits for NATS or raises an error: events go into an outbox, which a thread empties (:mod:`jetstream_client.outbox`).
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from airflow_nats_jetstream.compat import conf, mask_secret, stats, tells_asset_events
from airflow_nats_jetstream.get_provider_info import EVENT_OPTIONS
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name, check_subject
from jetstream_client.quantities import check_count, check_seconds

if TYPE_CHECKING:
    from jetstream_client.outbox import Outbox
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)
hookimpl = pluggy.HookimplMarker("airflow")
Hook = TypeVar("Hook", bound=Callable[..., None])

SECTION = "jetstream_events"
ASSETS = "@asset"
"""The token of assets, which the id of no DAG can be."""
MOST, GRACE = 10_000, 2.0
LONGEST_SUBJECT = 2_048
"""Bytes. The server closes the connection of a client whose line is longer than 4,096 bytes (``max_control_line``)."""
_UNSAFE = re.compile(r"[\x00-\x20\x7f.*>%]")


def token(name: str) -> str:
    """Return a name as one token of a subject: ``%`` and two hexadecimal digits for each character that a token cannot
    contain, and for ``%``. ``urllib.parse.unquote`` returns the name.

    name:  the id of a DAG or task, or the name of an asset.
    """
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which names are published: those that match a pattern of ``allow``, or all if there is none, without those that
    match a pattern of ``deny``. The patterns are globs."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def selects(self, name: str) -> bool:
        """Return whether a name is published.

        name:  the id of a DAG or task, or the name of an asset.
        """
        allowed = not self.allow or any(fnmatchcase(name, each) for each in self.allow)
        return allowed and not any(fnmatchcase(name, each) for each in self.deny)

    @classmethod
    def read(cls, what: str) -> Filter:
        """Read the options ``<what>_allowlist`` and ``<what>_denylist``.

        what:  what the names are.
        """
        return cls(*(_patterns(f"{what}_{kind}list") for kind in ("allow", "deny")))


@dataclass(frozen=True, kw_only=True)
class Config:
    """The section ``[jetstream_events]``. docs/monitoring.md describes its options."""

    nats_conn_id: str
    stream: str | None = None
    subject_prefix: str = "airflow"
    dag_runs: bool = True
    task_instances: bool = True
    assets: bool = True
    runs_of: Filter = Filter()
    tasks_of: Filter = Filter()
    task_ids: Filter = Filter()
    asset_names: Filter = Filter()
    max_events: int = MOST
    grace: float = GRACE

    def __post_init__(self) -> None:
        if self.stream is not None:
            check_stream_name(self.stream, f"[{SECTION}] stream")
        check_subject(self.subject_prefix, f"[{SECTION}] subject_prefix")
        check_count(f"[{SECTION}] max_events", self.max_events)
        check_seconds(f"[{SECTION}] grace", self.grace, zero=True)

    @classmethod
    def read(cls) -> Config | None:
        """Read Airflow's configuration. Returns None if no connection is named. Raises InvalidValue."""
        _check_options()
        if not (conn_id := conf.get(SECTION, "nats_conn_id", fallback="").strip()):
            return None
        return cls(
            nats_conn_id=conn_id,
            stream=conf.get(SECTION, "stream", fallback="").strip() or None,
            subject_prefix=conf.get(SECTION, "subject_prefix", fallback="airflow").strip(),
            dag_runs=_value("dag_run_events_enabled", conf.getboolean, True),
            task_instances=_value("task_instance_events_enabled", conf.getboolean, True),
            assets=_value("asset_events_enabled", conf.getboolean, True),
            runs_of=Filter.read("dag_run_dag_id"),
            tasks_of=Filter.read("task_instance_dag_id"),
            task_ids=Filter.read("task_instance_task_id"),
            asset_names=Filter.read("asset_name"),
            max_events=_value("max_events", conf.getint, MOST),
            grace=_value("grace", conf.getfloat, GRACE),
        )


def listeners() -> list[Any]:
    """Return the listener, if it is configured. A configuration that is invalid is logged, and nothing is published:
    it must not keep Airflow from starting."""
    try:
        config = Config.read()
    except InvalidValue as wrong:
        said = "no events are published to JetStream, because the configuration is invalid: %s"
        log.error(said, wrong)  # noqa: TRY400 - where it was raised says nothing
        return []
    return [] if config is None else [RunEvents(config)]


def _safe(hook: Hook) -> Hook:
    """Log every error of a hook, and count its event as lost, instead of raising the error in Airflow."""

    @wraps(hook)
    def safe(self: RunEvents, *args: Any, **values: Any) -> None:
        try:
            hook(self, *args, **values)
        except Exception as error:  # noqa: BLE001 - a listener must not fail a worker or the scheduler
            counted(0, 1)
            log.warning("an event was lost in %s (%s)", hook.__name__, type(error).__name__)

    return safe  # type: ignore[return-value]


class RunEvents:
    """Airflow's listener. Each hook publishes one event.

    config:  the configuration.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.outbox = self._new()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._end)

    @hookimpl
    @_safe
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        """Publish that a task runs.

        previous_state:  its state before.
        task_instance:   the task instance.
        """
        self._task(task_instance, "running", previous_state)

    @hookimpl
    @_safe
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """Publish that a task has succeeded, or was marked as such.

        previous_state, task_instance:  as for :meth:`on_task_instance_running`.
        """
        self._task(task_instance, "success", previous_state)

    @hookimpl
    @_safe
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None:
        """Publish that a try of a task has failed. The state is ``up_for_retry`` if another follows.

        previous_state, task_instance:  as for :meth:`on_task_instance_running`.
        error:                          what the task has raised. Only the name of its type is published.
        """
        again = _name(getattr(task_instance, "state", None)) == "up_for_retry"
        kind = type(error).__name__ if isinstance(error, BaseException) else None
        self._task(task_instance, "up_for_retry" if again else "failed", previous_state, error=kind)

    @hookimpl
    @_safe
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        """Publish that a task has skipped itself.

        previous_state, task_instance:  as for :meth:`on_task_instance_running`.
        """
        self._task(task_instance, "skipped", previous_state)

    @hookimpl
    @_safe
    def on_dag_run_running(self, dag_run: Any) -> None:
        """Publish that a run has begun.

        dag_run:  the run.
        """
        self._run(dag_run, "running")

    @hookimpl
    @_safe
    def on_dag_run_success(self, dag_run: Any) -> None:
        """Publish that a run has succeeded.

        dag_run:  the run.
        """
        self._run(dag_run, "success")

    @hookimpl
    @_safe
    def on_dag_run_failed(self, dag_run: Any) -> None:
        """Publish that a run has failed.

        dag_run:  the run.
        """
        self._run(dag_run, "failed")

    @hookimpl
    @_safe
    def on_asset_created(self, asset: Any) -> None:
        """Publish that an asset is known.

        asset:  the asset.
        """
        self._asset(asset, "created", {})

    @hookimpl
    @_safe
    def on_asset_changed(self, asset: Any) -> None:
        """Publish that an asset was updated, if Airflow does not tell by whom.

        asset:  the asset.
        """
        if not tells_asset_events():
            self._asset(asset, "changed", {})

    @hookimpl
    @_safe
    def on_asset_event_emitted(self, asset_event: Any) -> None:
        """Publish that an asset was updated, and by whom.

        asset_event:  the event.
        """
        names = ("source_dag_id", "source_task_id", "source_run_id", "source_map_index", "partition_key")
        about = {name: getattr(asset_event, name, None) for name in names}
        self._asset(asset_event.asset, "changed", about)

    @hookimpl
    @_safe
    def before_stopping(self) -> None:
        """Give the last events of a process the time to be stored, at most ``grace`` seconds, and none while NATS is
        known not to answer."""
        outbox, self.outbox = self.outbox, self._new()
        outbox.close(self.config.grace)

    def _task(self, ti: Any, state: str, before: Any, **more: Any) -> None:
        config = self.config
        if config.task_instances and config.tasks_of.selects(ti.dag_id) and config.task_ids.selects(ti.task_id):
            about = {
                name: getattr(ti, name, None) for name in ("dag_id", "task_id", "run_id", "map_index", "try_number")
            }
            about |= {"ti_id": str(ti.id), "previous_state": _name(before)}
            times = {name: _moment(getattr(ti, name, None)) for name in ("start_date", "end_date")}
            self._put("task_instance", (ti.dag_id, ti.task_id), state, {**about, **times, **more})

    def _run(self, run: Any, state: str) -> None:
        if self.config.dag_runs and self.config.runs_of.selects(run.dag_id):
            about = {name: getattr(run, name, None) for name in ("dag_id", "run_id")}
            about |= {"run_type": _name(getattr(run, "run_type", None))}
            names = ("logical_date", "data_interval_start", "data_interval_end", "start_date", "end_date")
            self._put(
                "dag_run", (run.dag_id,), state, about | {name: _moment(getattr(run, name, None)) for name in names}
            )

    def _asset(self, asset: Any, state: str, more: dict[str, Any]) -> None:
        if self.config.assets and self.config.asset_names.selects(asset.name):
            about = {"name": asset.name, "uri": asset.uri, "group": getattr(asset, "group", None)}
            self._put("asset", (ASSETS, asset.name), state, about | more)

    def _put(self, kind: str, names: tuple[str, ...], state: str, about: dict[str, Any]) -> None:
        """Put an event into the outbox. Its id is new each time: two equal events are two changes."""
        tokens = (each if each is ASSETS else token(each) for each in names)
        subject = ".".join([self.config.subject_prefix, *tokens, state])
        if len(subject.encode()) > LONGEST_SUBJECT:
            raise InvalidValue("subject", f"{subject[:80]}…", f"is longer than {LONGEST_SUBJECT} bytes")
        identity, now = str(uuid.uuid4()), datetime.now(UTC).isoformat()
        event = {"id": identity, "event": kind, "state": state, "at": now, **about}
        self.outbox.put(subject, json.dumps(event, default=str).encode(), identity)

    def _new(self) -> Outbox:
        from jetstream_client.outbox import Outbox

        return Outbox(self._settings, stream=self.config.stream, most=self.config.max_events, on_count=counted)

    def _forked(self) -> None:
        """Begin anew in a process that was forked: its parent publishes what is in the parent's outbox."""
        self.outbox = self._new()

    def _end(self) -> None:
        self.outbox.close(self.config.grace)

    def _settings(self) -> ConnectionSettings:
        from airflow.sdk import BaseHook

        from airflow_nats_jetstream.airflow_connection import settings_of
        from airflow_nats_jetstream.masks import masks

        connection = BaseHook.get_connection(self.config.nats_conn_id)
        mask_secret(masks(connection))
        return settings_of(connection)


def counted(published: int, lost: int) -> None:
    """Count events in Airflow's metrics.

    published:  the number of events that were published.
    lost:       the number of events that were lost.
    """
    metrics = stats()
    for name, count in (("published", published), ("lost", lost)):
        if count:
            metrics.incr(f"jetstream.events.{name}", count)


def _patterns(option: str) -> tuple[str, ...]:
    return tuple(each for each in re.split(r"[\s,]+", conf.get(SECTION, option, fallback="")) if each)


def _check_options() -> None:
    """Check that all options of the section exist: a misspelled denylist would publish what it denies. Raises
    InvalidValue, without a value, which may be a secret."""
    try:
        given = conf.getsection(SECTION) or {}
    except Exception as error:  # noqa: BLE001 - Airflow raises errors of several kinds
        raise InvalidValue(f"[{SECTION}]", "…", f"the section cannot be read ({type(error).__name__})") from None
    for name in sorted(given):
        if name.removesuffix("_cmd").removesuffix("_secret") not in EVENT_OPTIONS:
            near = get_close_matches(name, EVENT_OPTIONS, n=1)
            remedy = f"there is no such option; {f'did you mean {near[0]}?' if near else 'leave it out'}"
            raise InvalidValue(f"[{SECTION}] {name}", "…", remedy)


def _value(option: str, read: Callable[..., Any], default: Any) -> Any:
    """Return a boolean or a number. Raises InvalidValue."""
    try:
        return read(SECTION, option, fallback=default)
    except Exception:  # noqa: BLE001 - Airflow raises errors of several kinds
        value = conf.get(SECTION, option, fallback="")
        raise InvalidValue(f"[{SECTION}] {option}", value, f"give a value such as {default}") from None


def _name(state: Any) -> str | None:
    """Return an enumeration's value."""
    return None if state is None else str(getattr(state, "value", state))


def _moment(value: Any) -> str | None:
    return value.isoformat() if isinstance(value, datetime) else None
