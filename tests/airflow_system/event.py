"""What an event is: it strikes a run, rows are seen, and in the end nothing is lost. Also the table of them."""

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.airflow_system.run import Run

Play = Callable[[Run], Iterator[None]]
MESSAGES = 200
BEGIN, END = "<!-- the table: written by make events -->", "<!-- the end of the table -->"


@dataclass(frozen=True)
class Row:
    """What is seen at one moment.

    task:            the state of the work's task; `claims:` and the sensor's, while there is no work yet.
    ledger:          the stream's claims: held by an attempt, open, done, failed, superseded.
    unacknowledged:  `all`, `0` or the number: what the consumer has pending and acknowledgements pending.
    body:            how often it began on these messages.
    """

    task: str
    ledger: str
    unacknowledged: str
    body: int
    when: str = "afterwards"


@dataclass(frozen=True)
class Event:
    """What strikes, and what comes of it.

    play:      strikes a run that has not begun, and yields at each moment at which its next row holds; what follows
               the last `yield` lets the run go on.
    rows:      what is seen at these moments.
    in_all:    how often the body has begun on these messages once everything is settled.
    why:       one sentence on the rows, and `remedy` one for the person who is woken.
    messages:  how many the run has.
    alone:     it strikes what other runs need, too.
    """

    title: str
    play: Play
    rows: tuple[Row, ...]
    in_all: int
    why: str
    remedy: str
    messages: int = MESSAGES
    alone: bool = False

    def played(self, run: Run) -> "Event":
        """This event with what was seen. A further run took what was left; AssertionError if that lost a message."""
        moments = self.play(run)
        rows = tuple(_seen(run, row.when) for row, _ in zip(self.rows, moments, strict=True))
        run.ends()
        run.judge.publish(run.stream, MESSAGES)
        waiting = sum(run.judge.pending(run.stream))
        run.open_the_gate()
        further = run.another().claim(waiting, least=waiting)
        assert further.ends() == "success"
        run.judge.every_message_settled_once(run.stream, run.judge.stored(run.stream))
        return replace(self, rows=rows, in_all=run.bodies())

    def lines(self) -> str:
        """Its lines of the table."""
        titles = [self.title, *[""] * (len(self.rows) - 1)]
        in_all = [*[""] * (len(self.rows) - 1), str(self.in_all)]
        return "\n".join(
            f"| {title} | {row.when} | {row.task} | {row.ledger} | {row.unacknowledged} | {row.body} | {last} |"
            for title, row, last in zip(titles, self.rows, in_all, strict=True)
        )


def _seen(run: Run, when: str) -> Row:
    """The row that holds now, asked from Airflow, the server and the marks of the body."""
    state = run.state()
    waiting = sum(run.judge.pending(run.stream))
    return Row(
        task=state or f"claims: {run.state('claims', -1)}",
        ledger=", ".join(run.judge.ledger(run.stream)),
        unacknowledged="all" if waiting == run.count else str(waiting),
        body=run.bodies(),
        when=when,
    )


def table(events: Iterable[Event]) -> str:
    """The table, and why and what to do under it, as Markdown."""
    events = list(events)
    head = (
        "| Event | When | Task | Ledger | Unacknowledged | Body ran | Body ran in all |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    words = "\n\n".join(
        f"{_wrapped(f'**{each.title}.** {each.why}')}\n{_wrapped(f'*At 3 a.m.:* {each.remedy}')}" for each in events
    )
    return head + "\n".join(each.lines() for each in events) + "\n\n" + words


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False)


def documented(page: Path) -> str:
    """What the page has between the markers."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def document(page: Path, events: Iterable[Event]) -> None:
    """Write the table between the page's markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table(events)}\n\n{END}{rest.partition(END)[2]}")
