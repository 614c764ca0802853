"""An event of Airflow that strikes a run: rows are observed, and in the end nothing is lost. Also their table."""

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
    """One row: what is observed at one moment.

    task:            the state of the working task, or the names and states of others; before it exists, `claims:` and
                     the state of the sensor.
    ledger:          the stream's claims: held by an attempt, open, done, failed, superseded.
    unacknowledged:  `all`, `0` or a number: the messages that are undelivered or unacknowledged at the consumer.
    body:            how many times the body has begun on these messages.
    """

    task: str
    ledger: str
    unacknowledged: str
    body: int
    when: str = "afterwards"


@dataclass(frozen=True)
class Event:
    """One event, and its consequences.

    play:      causes the event in a run that has not begun, and yields at each moment at which its next row holds; what
               follows the last `yield` lets the run continue.
    rows:      what is observed at these moments.
    in_all:    how many times the body has begun on these messages when everything is settled.
    why:       one sentence that explains the rows.
    remedy:    one sentence for the person on call.
    messages:  how many messages the run has.
    alone:     whether the event also affects services that other runs need.
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
        """Play the event, let a further run take the rest, and return the event with the observed rows.

        Raises AssertionError if a message was lost.
        """
        moments = self.play(run)
        rows = tuple(_seen(run, row.when) for row, _ in zip(self.rows, moments, strict=True))
        run.ends()
        waiting = sum(run.judge.pending(run.stream)) + MESSAGES
        run.judge.publish(run.stream, MESSAGES)
        run.open_the_gate()
        further = run.another().claim(waiting, least=waiting)
        assert further.ends() == "success"
        run.judge.every_message_settled_once(run.stream, run.judge.stored(run.stream))
        return replace(self, rows=rows, in_all=run.bodies())

    def lines(self) -> str:
        """Return the lines of this event in the table."""
        titles = [self.title, *[""] * (len(self.rows) - 1)]
        in_all = [*[""] * (len(self.rows) - 1), str(self.in_all)]
        return "\n".join(
            f"| {title} | {row.when} | {row.task} | {row.ledger} | {row.unacknowledged} | {row.body} | {last} |"
            for title, row, last in zip(titles, self.rows, in_all, strict=True)
        )


def _seen(run: Run, when: str) -> Row:
    """Return the row that holds now, from Airflow, the server and the marks of the body."""
    waiting = sum(run.judge.pending(run.stream))
    return Row(
        task=run.states(),
        ledger=", ".join(run.judge.ledger(run.stream)),
        unacknowledged="all" if waiting == run.count else str(waiting),
        body=run.bodies(),
        when=when,
    )


def table(events: Iterable[Event]) -> str:
    """Return the table, and the explanations and remedies below it, as Markdown."""
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
    """Return the text between the markers of the page."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def document(page: Path, events: Iterable[Event]) -> None:
    """Write the table between the page's markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table(events)}\n\n{END}{rest.partition(END)[2]}")
