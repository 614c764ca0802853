"""A task that holds a claim, and what it means to the task when the claim is settled or lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.template import OfClaim
from airflow_nats_jetstream.tracebacks import Brief
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, Superseded

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from airflow_nats_jetstream.held import HeldClaim

FOREIGN = (ClaimInvalid, Superseded, HeldByAnother, HoldLost)
"""A claim that this task will never settle: a retry would find the same."""


class ClaimTask(OfClaim):
    """A task that holds its claim, to settle it or give it back. ``log`` is the operator's."""

    ui_fgcolor = "#ffffff"
    operator_extra_links: Collection[BaseOperatorLink] = (JetStreamLink(),)
    on_settled: str
    on_settled_choices: ClassVar[tuple[str, ...]] = ("return", "fail")
    log: Any
    _held: HeldClaim | None = None

    def _check_on_settled(self) -> None:
        """Raises InvalidValue."""
        if self.on_settled not in self.on_settled_choices:
            raise InvalidValue("on_settled", self.on_settled, f"give one of {', '.join(self.on_settled_choices)}")

    def _outcome(self, work: Callable[[], Any], undone: str = "") -> Any:
        """Return what ``work`` returns, or the recorded value of a claim that was settled before.

        undone:  why the claim must not count as settled.

        Raises:
            AirflowFailException: the claim was settled and must not be, or belongs to another attempt. Airflow does not
                try again.
        """
        try:
            with Brief():
                return work()
        except AlreadyDone as done:
            if undone or self.on_settled == "fail":
                why = undone or "on_settled='fail'"
                raise AirflowFailException(f"{done}; {why}") from done
            self.log.info("%s; returning its recorded value", done)
            return done.value
        except FOREIGN as foreign:
            if self._held is not None and self._held.killed:
                raise  # nobody else has it: Airflow decides whether to try again
            raise AirflowFailException(f"{foreign}; {undone}" if undone else str(foreign)) from foreign
        finally:
            self._held = None

    def on_kill(self) -> None:
        """Release the claim within 3 s; from then on this attempt cannot settle it."""
        if self._held is not None:
            self.log.warning("killed: releasing claim %s", self._held.id)
            self._held.kill()
