"""What happens to the runs of a DAG, and when: planned from the seed, so that a violation can be repeated."""

import random
from dataclasses import dataclass
from typing import Any

from tests.dag_fuzz.shape import Shape, task_ids, work_id

CLEAR, CLEAR_RUN, MARK, MARK_RUN, KILL, KILL_WORKER = (
    "clear",
    "clear run",
    "mark",
    "mark run",
    "kill",
    "kill worker",
)
END = "end"
"""The moment at which no run is active."""


@dataclass(frozen=True)
class Strike:
    """One event.

    moment:    a task id and a state that one of its instances has to reach, or END.
    delay:     seconds after the moment.
    what:      the event.
    task:      the task that it happens to.
    index:     the map index; None means all of a mapped task.
    how:       further fields of Airflow's request, such as `include_downstream`.
    publish:   how many messages are published before it.
    run:       the number of the run.
    also:      tasks that are cleared by the same request.
    """

    moment: tuple[str, str]
    delay: float
    what: str
    task: str = ""
    index: int | None = None
    how: tuple[tuple[str, Any], ...] = ()
    publish: int = 0
    run: int = 0
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.task + ("" if self.index is None else f"[{self.index}]")
        how = " ".join(name if value is True else f"{name}={value}" for name, value in self.how if value)
        when = "at the end" if self.moment[1] == END else f"when {self.moment[0]} is {self.moment[1]}"
        words = [
            self.what,
            " + ".join((place, *self.also)),
            how,
            f"of run {self.run}",
            when,
            f"+ {self.delay} s",
            f"{self.publish} published",
        ]
        return " ".join(filter(None, words))


def strikes(seed: int, of: Shape) -> list[Strike]:
    """Return the plan for a DAG: half of the plans begin with what people often do, and some of them go on."""
    chance = random.Random(f"{seed}/{of['dag_id']}/strikes")
    if of.get("stage") and random.Random(f"{seed}/{of['dag_id']}/around the stage").random() < 0.4:
        return _around_the_stage(chance, of)
    if chance.random() < 0.5:
        count = chance.choices((0, 1, 2, 3, 4), (1, 6, 6, 3, 1))[0]
        return [_strike(chance, of) for _ in range(count)]
    return _habit(chance, of) + [_strike(chance, of) for _ in range(chance.choice((0, 0, 1)))]


def _habit(chance: random.Random, of: Shape) -> list[Strike]:
    """What people do when something went wrong, or takes too long."""
    ids = task_ids(of)
    after = [each for each in ids if each not in ("claims", "flat", "pick")]
    chosen = chance.choice((*after, *after[:1]))
    index = chance.choice((0, None)) if ids[chosen] else None
    run = chance.randrange(of["runs"])
    downstream = (("include_downstream", True), ("only_failed", False))
    alone = (("include_downstream", False), ("only_failed", False))
    end = ("", END)
    more = chance.randint(1, 4)
    habits = ("downstream", "downstream", "sensor alone", "some", "stop the run", "stop the run", "sensor below")
    habit = chance.choice(habits)
    if habit == "downstream":
        return [Strike(end, 0.5, CLEAR, chosen, index, downstream, more, run)]
    if habit == "sensor alone":
        last = chance.choice(after[-2:])
        return [
            Strike(end, 0.5, CLEAR, "claims", None, alone, more, run),
            Strike(end, 0.5, CLEAR, last, None, alone, 0, run),
        ]
    if habit == "some":
        also = tuple(each for each in list(ids)[1:] if chance.random() < 0.5)
        return [Strike(end, 0.5, CLEAR, "claims", None, alone, more, run, also)]
    if habit == "stop the run":
        state = chance.choice(("failed", "failed", "success"))
        delay = round(chance.uniform(0, 1), 2)
        return [Strike((after[0], "running"), delay, MARK_RUN, how=(("state", state),), run=run)]
    return [Strike((chosen, "running"), 0.2, CLEAR, "claims", None, chance.choice((alone, downstream)), more, run)]


def _around_the_stage(chance: random.Random, of: Shape) -> list[Strike]:
    """The sensor is cleared alone. At once or later, the task that holds its claims is cleared, too, but not the stage
    between them."""
    ids, run = task_ids(of), chance.randrange(of["runs"])
    works = [each for each in ids if each not in ("claims", work_id(of, "stage"), work_id(of, "after"))]
    alone = (("include_downstream", False), ("only_failed", False))
    more = chance.randint(1, 4)
    if chance.random() < 0.3:
        return [Strike(("", END), 0.5, CLEAR, "claims", None, alone, more, run, tuple(works))]
    return [
        Strike(("", END), 0.5, CLEAR, "claims", None, alone, more, run),
        Strike(("", END), 0.5, CLEAR, works[0], None, alone, 0, run, tuple(works[1:])),
    ]


def _strike(chance: random.Random, of: Shape) -> Strike:
    ids = task_ids(of)
    watched = chance.choice(list(ids))
    moment = (watched, chance.choice(("running", "running", "success", "failed")))
    if chance.random() < 0.6:
        moment = ("", END)
    what = chance.choices((CLEAR, CLEAR_RUN, MARK, MARK_RUN, KILL, KILL_WORKER), (10, 2, 3, 2, 3, 0.3))[0]
    if moment[1] == END and what in (KILL, KILL_WORKER):
        moment = (chance.choice(list(ids)), "running")
    task = moment[0] if what in (KILL, KILL_WORKER) else chance.choice(list(ids))
    index = chance.choice((0, 0, 1, None, None)) if ids[task] else None
    how: dict[str, Any] = {}
    if what == CLEAR:
        how = {"include_downstream": chance.random() < 0.7, "include_upstream": chance.random() < 0.2}
        how["only_failed"] = chance.random() < 0.15
    elif what == CLEAR_RUN:
        how = {"only_failed": chance.random() < 0.4}
    elif what == MARK:
        how = {"new_state": chance.choice(("success", "success", "failed", "skipped"))}
        how["include_downstream"] = chance.random() < 0.2
    elif what == MARK_RUN:
        how = {"state": chance.choice(("failed", "failed", "success"))}
    return Strike(
        moment=moment,
        delay=round(chance.choice((0, 0, chance.uniform(0, 1), chance.uniform(0, 3))), 2),
        what=what,
        task="" if what in (CLEAR_RUN, MARK_RUN) else task,
        index=index if what in (CLEAR, MARK, KILL, KILL_WORKER) else None,
        how=tuple(how.items()),
        publish=chance.randint(1, 4) if what in (CLEAR, CLEAR_RUN) and chance.random() < 0.9 else 0,
        run=chance.randrange(of["runs"]),
    )
