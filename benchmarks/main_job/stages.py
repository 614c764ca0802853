"""The stages from a message to its settlement, and how long each of them took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median


class Stage(StrEnum):
    """The stages in their order. The values are their names in tables and plots."""

    NOTICE = "the watcher gives notice"
    SENSOR = "Airflow starts the sensor"
    TAKE = "the sensor takes the messages"
    TASK = "Airflow starts the tasks"
    HOLD = "the tasks load and hold their claims"
    SPARK = "Spark starts"
    WORK = "the work is done"
    SETTLE = "the claims are settled"


@dataclass(frozen=True)
class Task:
    """What one task did with its claim, each as a moment in seconds since 1970; `read` is None without Spark."""

    started: float
    held: float
    read: float | None
    done: float
    settled: float


@dataclass(frozen=True)
class Timeline:
    """The seconds of each stage. They follow each other without a gap, so their sum is the whole time."""

    stages: Mapping[Stage, float]

    @property
    def total(self) -> float:
        return sum(self.stages.values())

    @classmethod
    def of(cls, begin: float, *ends: tuple[Stage, float]) -> Timeline:
        """Return a timeline of stages that end at these moments, one after the other. A stage may occur repeatedly."""
        stages = dict.fromkeys((stage for stage, _ in ends), 0.0)
        for stage, end in ends:
            stages[stage] += end - begin
            begin = end
        return cls(stages)


def ends(tasks: Sequence[Task]) -> list[tuple[Stage, float]]:
    """Return when the stages of parallel tasks end on the longest path: that of the task that settles last, before it
    that of the task for whose end it waited, and so on. Of several such tasks it is the one that settled last."""
    path = [max(tasks, key=lambda task: task.settled)]
    while earlier := [task for task in tasks if task.settled <= path[0].started]:
        path.insert(0, max(earlier, key=lambda task: task.settled))
    found: list[tuple[Stage, float]] = []
    for task in path:
        found += [(Stage.TASK, task.started), (Stage.HOLD, task.held)]
        found += [] if task.read is None else [(Stage.SPARK, task.read)]
        found += [(Stage.WORK, task.done), (Stage.SETTLE, task.settled)]
    return found


@dataclass(frozen=True)
class Runs:
    """Several measurements of the same thing."""

    timelines: Sequence[Timeline]

    @property
    def median(self) -> float:
        """The median of the whole times, in seconds."""
        return median(each.total for each in self.timelines)

    @property
    def worst(self) -> float:
        """The longest of the whole times, in seconds."""
        return max(each.total for each in self.timelines)

    @property
    def stages(self) -> dict[Stage, float]:
        """The mean seconds of each stage, in the order of the stages. Unlike medians, they add up."""
        found = [stage for stage in Stage if any(stage in each.stages for each in self.timelines)]
        return {stage: fmean(each.stages.get(stage, 0.0) for each in self.timelines) for stage in found}
