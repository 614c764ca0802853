"""The stages of a run with several tasks: only those on its longest path count."""

import pytest

from benchmarks.main_job.stages import Runs, Stage, Task, Timeline, ends


def task(started: float) -> Task:
    """A task that takes 10 s: 1 s, 2 s, 3 s and 4 s for its stages."""
    return Task(started, started + 1, started + 3, started + 6, started + 10)


def test_the_stages_of_a_run_are_those_of_the_task_that_settles_last_and_of_the_one_it_waited_for() -> None:
    tasks = [task(5), task(5.5), task(17), task(16)]
    timeline = Timeline.of(0, (Stage.TAKE, 3), *ends(tasks))
    assert timeline.stages == {
        Stage.TAKE: 3,
        Stage.TASK: 2.5 + 1.5,
        Stage.HOLD: 2,
        Stage.SPARK: 4,
        Stage.WORK: 6,
        Stage.SETTLE: 8,
    }
    assert timeline.total == 27


def test_the_stages_of_several_runs_add_up_to_the_mean() -> None:
    runs = Runs([Timeline({Stage.TAKE: 1, Stage.WORK: 2}), Timeline({Stage.WORK: 4}), Timeline({Stage.WORK: 20})])
    assert list(runs.stages) == [Stage.TAKE, Stage.WORK]
    assert sum(runs.stages.values()) == pytest.approx(9)
    assert (runs.median, runs.worst) == (4, 20)
