# SPDX-License-Identifier: Apache-2.0
"""Base of the tasks that hold a claim. It decides how such a task ends if its claim was already settled, or is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_nats_jetstream.compat import AirflowFailException, AirflowTaskTimeout
from airflow_nats_jetstream.held.work import of_work
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators import ending
from airflow_nats_jetstream.template import OfClaim
from airflow_nats_jetstream.tracebacks import Brief
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import FOREIGN, AlreadyDone

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from pyspark_jetstream.held_claim import HeldClaim


class ClaimTask(OfClaim):
    """Mixin for an operator that holds its claim in order to settle, fail or release it. ``log`` is the operator's."""

    ui_fgcolor = "#ffffff"
    operator_extra_links: Collection[BaseOperatorLink] = (JetStreamLink(),)
    holds_claims = True
    on_settled: str
    on_settled_choices: ClassVar[tuple[str, ...]] = ("return", "fail")
    log: Any
    _held: HeldClaim | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("execute", "execute_callable", "resume"):
            if name in cls.__dict__ and any(
                name in each.__dict__ for each in cls.mro()[1:] if issubclass(each, ClaimTask)
            ):
                raise InvalidValue(
                    name,
                    cls.__name__,
                    "this class overrides the method that settles the claim, so that its code could fail afterwards; "
                    "put the code into the work on the claim, such as python_callable, or into post_execute",
                )

    def _check_on_settled(self) -> None:
        """Check ``on_settled``. Raises InvalidValue."""
        check_on_settled(self.on_settled, self.on_settled_choices)

    def _outcome(self, work: Callable[[], Any], undone: str = "") -> Any:
        """Return the result of :func:`outcome` for this task."""
        try:
            return outcome(work, self.on_settled, self.log, lambda: self._held, undone)
        finally:
            self._held = None

    def _settled(self, held: HeldClaim, work: Callable[[], Any], context: Context) -> Any:
        """Do the work on a held claim, and settle the claim with the value that it returns."""
        value: Any = None
        settling = False
        try:
            value = of_work(work)
            settling = not held.ended  # the work itself may have ended the hold, and not settled the claim
            ending.settle(held, value, value, self, context)
        except (AlreadyDone, *FOREIGN):
            raise
        except BaseException as error:
            if isinstance(error, AirflowTaskTimeout) and settling and held.ended:
                self.log.info(
                    "the task timed out after its work had ended, while its claim was being settled; the claim is "
                    "settled"
                )
                return value
            ending.end(held, error, self, context["ti"])
            raise
        return value

    def on_kill(self) -> None:
        """Release the claim, which takes at most 3 s. From then on, this attempt cannot settle the claim."""
        if self._held is not None:
            self.log.warning("the task is being killed: releasing claim %s", self._held.id)
            self._held.kill()


def outcome(
    work: Callable[[], Any], on_settled: str, log: Any, held: Callable[[], HeldClaim | None], undone: str = ""
) -> Any:
    """Return the result of ``work``, or the recorded value of a claim that was settled before.

    work:        called without arguments, to hold and end the claim.
    on_settled:  what to do with a claim that is already settled: ``"return"`` or ``"fail"``.
    log:         the task's log.
    held:        called without arguments, to get the claim that the work holds or held; None if it holds none.
    undone:      the reason why the claim must not count as settled; empty if there is none.

    Raises:
        AirflowFailException: the claim was already settled and ``on_settled`` or ``undone`` forbids this, or the
            claim belongs to another attempt. Airflow does not retry the task.
    """
    try:
        with Brief():
            return work()
    except AlreadyDone as done:
        if undone or on_settled == "fail":
            why = f"its work has not succeeded ({undone})" if undone else "this task has on_settled='fail'"
            raise AirflowFailException(f"{done}, but {why}") from done
        log.info("%s; returning the recorded value", done)
        ending.skips_again(done.value)
        return done.value
    except FOREIGN as foreign:
        claim = held()
        if claim is not None and claim.killed:
            raise  # no other attempt has the claim, so Airflow may retry the task
        more = f"; in addition, the work on the claim has not succeeded ({undone})" if undone else ""
        raise AirflowFailException(f"{foreign}{more}") from foreign


def check_on_settled(value: str, choices: tuple[str, ...]) -> None:
    """Check a task's ``on_settled``. Raises InvalidValue."""
    if value not in choices:
        raise InvalidValue("on_settled", value, f"give one of {', '.join(map(repr, choices))}")
