"""In which windows the pipelines are, according to their marks, and whether the server agrees."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.observer import Observer, Ranges, sequences
from tests.chaos.pipelines import Pipeline
from tests.chaos.record import Record
from tests.chaos.windows import ACKNOWLEDGE, FETCH, HAND_OFF, WORK

LONGEST = {FETCH: 15.0, HAND_OFF: 30.0, WORK: 60.0, ACKNOWLEDGE: 30.0}
"""Seconds after which a pipeline that has not left a window counts as struck there."""


@dataclass(frozen=True)
class Scene:
    """One pipeline in one window. `key` is the claim's id, in the first window the run's, in the last the sequences.

    `deferred` says that the task's trigger is in the window, and no task process. `worker` is the pid of the process of
    a Dagster run.
    """

    window: str
    pipeline: Pipeline
    key: str
    pid: int
    since: float
    ranges: Ranges
    run: str = ""
    attempt: str = ""
    deferred: bool = False
    worker: int = 0

    async def confirmed(self, observer: Observer) -> bool:
        """Whether consumer and ledger show this window."""
        stream = self.pipeline.stream
        record = await observer.record(stream)
        entries: dict[str, dict[str, Any]] = record.get("open", {})
        if self.window == ACKNOWLEDGE:
            done = all(entry["ranges"] != self.ranges for entry in entries.values())
            return done and (await observer.consumer(stream))["num_ack_pending"] > 0
        if self.window == FETCH:
            mine = set(sequences(self.ranges))
            overlapping = [each for each in entries.values() if mine & set(sequences(each["ranges"]))]
            if any(each["token"] for each in overlapping):
                return False
            return bool(overlapping) or (await observer.consumer(stream)).get("num_ack_pending", 0) > 0
        entry = entries.get(self.key)
        if self.window == HAND_OFF:
            return entry is not None and entry["token"] is None
        return entry is not None and f"{self.key}-{entry['token']}" == self.attempt


class Scenes:
    """Every pipeline's windows."""

    def __init__(self, folder: Path, pipelines: tuple[Pipeline, ...]) -> None:
        self._marks = Record(folder / "marks.jsonl")
        self._pipelines = {pipeline.stream: pipeline for pipeline in pipelines}
        self._scenes: dict[tuple[str, str, str], Scene] = {}
        self.fenced: Counter[str] = Counter()
        """How many times the ledger refused something, by the name of the error."""
        self.entered: Counter[str] = Counter()

    def now(self) -> list[Scene]:
        """The scenes that are open, oldest first."""
        for mark in self._marks.news():
            name = (mark["window"], mark["stream"], mark["key"])
            if mark["edge"] == "fenced":
                self.fenced[mark["reason"]] += 1
            elif mark["edge"] == "leave":
                self._scenes.pop(name, None)
            else:
                self.entered[mark["window"]] += 1
                self._scenes[name] = Scene(
                    mark["window"],
                    self._pipelines[mark["stream"]],
                    mark["key"],
                    mark["pid"],
                    mark["at"],
                    mark["ranges"],
                    mark.get("run", ""),
                    mark.get("attempt", ""),
                    mark.get("deferred", False),
                    mark.get("worker", 0),
                )
        for name, scene in list(self._scenes.items()):
            gone = scene.window != HAND_OFF and not psutil.pid_exists(scene.pid)
            if gone or time.time() - scene.since > LONGEST[scene.window]:
                del self._scenes[name]
        return list(self._scenes.values())

    def over(self, scene: Scene) -> None:
        """Note that the scene was struck."""
        self._scenes.pop((scene.window, scene.pipeline.stream, scene.key), None)
