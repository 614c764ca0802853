# SPDX-License-Identifier: Apache-2.0
"""The work of a held operator in one process of its task, and what kills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.compat import AirflowException
from jetstream_handoff.errors import FOREIGN, AlreadyDone
from jetstream_handoff.hold.driven import driven

if TYPE_CHECKING:
    from pyspark_jetstream.held_claim import HeldClaim


class Work:
    """The work of one process of a task: its claim, and whether its job was killed. A copy of the operator that did not
    run has one without a claim."""

    def __init__(self) -> None:
        self.held: HeldClaim | None = None
        self.killed = False

    def __deepcopy__(self, memo: Any) -> Work:
        return Work()

    def kill(self, kill_job: Callable[[], None]) -> None:
        """Release the claim and kill the job, in the thread that Airflow calls."""
        first = not self.killed
        self.killed = True
        if self.held is not None:
            self.held.kill()
        if first:
            kill_job()

    def stop(self, kill_job: Callable[[], None]) -> None:
        """Kill the job, because the claim is lost. An operator's ``on_kill`` is called once only, as it may fail the
        second time."""
        if not self.killed:
            self.killed = True
            kill_job()


def of_work(work: Callable[[], Any]) -> Any:
    """Do the work, and return its value.

    If it raises an error about a claim, another claim is meant, or the error has told the work that its
    own claim is lost. Neither says that the claim was settled.

    Raises:
        WorkNotDone: the call has returned, but the work is not done.
    """
    try:
        return driven(work)
    except (AlreadyDone, *FOREIGN) as error:
        raise AirflowException(f"the work has failed because of a claim: {error}") from error
