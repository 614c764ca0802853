# SPDX-License-Identifier: Apache-2.0
"""The operator that settles a claim after several tasks, or another engine, have worked on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_nats_jetstream.compat import AirflowFailException, AirflowSkipException
from airflow_nats_jetstream.dag.between import between, listed, passes_on, settles, states
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators import ending, tries
from airflow_nats_jetstream.operators.claim_task import ClaimTask, check_on_settled
from airflow_nats_jetstream.sensors import handed_on
from airflow_nats_jetstream.template import claimed, templated, yes_or_no
from jetstream_handoff.errors import FOREIGN, AlreadyDone
from jetstream_handoff.hold.ending import How, end_hold

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
OnSettled = Literal["return", "fail"]
_SKIPPED = (
    "if a skipped task means that there is nothing to do, set settle_skipped=True; if a branch has chosen another "
    "task, let a task with the trigger rule none_failed_min_one_success join both before this one"
)


class JetStreamSettleOperator(ClaimTask, BaseOperator):
    """Settle a claim if every task directly upstream has succeeded; otherwise fail both the claim and this task.

    claim:           the claim as the pull sensor returned it; map over it with ``expand``. (templated)
    value:           the value to record with the settlement, which is also the XCom: JSON of at most 8 KiB, for example
                     the place of the output. Readers get the value from :meth:`JetStreamHook.committed`. Default None.
                     (templated)
    settle_skipped:  whether a skipped task directly upstream counts as successful. It does not if another task between
                     the pull sensor and this one failed or never ran, nor if the run was cleared after the sensor
                     handed on the claim. Default False.
    on_settled:      what to do with a claim that is already settled: ``"return"`` the recorded value (default), or
                     ``"fail"`` without retry. (templated)
    nats_conn_id:    the id of the Airflow connection. Default ``nats_default``. (templated)

    The work consists of all tasks between the pull sensor and this task. It must have begun after the sensor handed on
    the claim: a sensor that is cleared without these tasks fails, and so does this task if it cannot know that.

    If all of this work was skipped, and another task of the DAG settles the same claim, as behind a branch, that task
    decides about the claim, and this one is skipped.

    The default trigger rule is ``all_done``, so that the messages of failed work are redelivered at once. The task then
    also fails, because a run whose last task succeeds counts as successful. Do not make it a teardown, and do not make
    the pull sensor a setup. docs/several-tasks.md describes the effects of a clear and of a retry.

    Work that takes longer than the pull sensor's ``hand_off_timeout`` needs a
    :class:`~airflow_nats_jetstream.sensors.JetStreamHoldSensor` that runs in parallel with it.

    Raises:
        AirflowFailException: the work did not succeed, no task that works on the claim is upstream, or the messages now
            belong to another run.
        InvalidValue: ``settle_skipped`` or ``on_settled`` is invalid, raised when the DAG is parsed; or the value is
            not JSON or too large, and nothing was settled.
        JetStreamError: another error. A retry settles the claim.
    """

    template_fields: Sequence[str] = ("claim", "value", "on_settled", "nats_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"claim": "json", "value": "json"}
    ui_color = "#375c93"
    settles_claims = True

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Map the operator. The scheduler does not call ``__init__``, so it gets the default trigger rule here."""
        _check(kwargs.get("settle_skipped", False), kwargs.get("on_settled", "return"))
        return super().partial(**{"trigger_rule": "all_done", **kwargs})

    def __init__(
        self,
        *,
        claim: Mapping[str, Any] | XComArg,
        value: Any = None,
        settle_skipped: bool = False,
        on_settled: OnSettled | str = "return",
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"trigger_rule": "all_done", **kwargs})
        _check(settle_skipped, on_settled)
        self.claim: Any = claim
        self.value = value
        self.settle_skipped = yes_or_no("settle_skipped", settle_skipped)
        self.on_settled = on_settled
        self.nats_conn_id = nats_conn_id

    def execute(self, context: Context) -> Any:
        self._check_on_settled()
        ti: Any = context["ti"]
        rival, certain = self._rival(ti)
        if rival and certain:
            raise AirflowSkipException(
                f"all tasks that work on the claim for this one were skipped, and {rival} decides about the claim"
            )
        undone, failed = self._undone(context)
        if rival:
            undone[rival] = "may also settle the claim"
        why = listed(undone)

        def decide() -> Any:
            with JetStreamHook(self.nats_conn_id).holding(self.claim, try_number=ti.try_number) as held:
                self._held = held
                if undone:
                    end_hold(
                        held, How.FAILED if failed else How.SKIPPED, reason=f"in {ti.dag_id}, run {ti.run_id}: {why}"
                    )
                    hint = "" if failed or not _only_skipped(undone) else f"; {_SKIPPED}"
                    raise AirflowFailException(
                        f"the claim {'has failed' if failed else 'is released'} and its messages are redelivered, "
                        f"because its work has not succeeded ({why}){hint}"
                    )
                try:
                    ending.settle(held, self.value, self.value, self, context)
                except (AlreadyDone, *FOREIGN):
                    raise
                except BaseException:
                    if not held.lost:
                        end_hold(held, How.UNSETTLED, next_try=None if tries.is_last(ti) else tries.lease(self, ti))
                    raise
            return self.value

        return self._outcome(decide, undone=why)

    def dry_run(self) -> None:
        """Print which tasks must have succeeded."""
        work, claim = ", ".join(self._work()), claimed(self.claim, "id")
        nothing = f"would fail claim {claim}, because no task that works on it is directly upstream"
        print(f"would settle claim {claim} after these tasks have succeeded: {work}" if work else nothing)  # noqa: T201

    def _work(self, task: Any = None) -> list[str]:
        """Return the tasks directly upstream of a task, by default this one, except those that take claims or pass them
        on."""
        upstream = sorted((task or self).upstream_task_ids)
        return [each for each in upstream if not passes_on(self.dag.get_task(each))]

    def _rival(self, ti: Any) -> tuple[str, bool]:
        """Return another task that may end the claim, and whether it is certain to do so, if all work of this task was
        skipped, as by a branch that has chosen the other one. An empty string if there is none.

        Of two settling tasks, the one whose work is skipped last sees that all work was skipped, and has no rival.
        """
        from airflow_nats_jetstream.dag.claim_use import ClaimUse

        if not self.has_dag() or not self.dag.has_task(self.task_id):  # type: ignore[no-untyped-call]
            return "", False
        own = ClaimUse(self.dag.get_task(self.task_id))  # as the DAG has it: with the source of the claim
        others = own.others()
        work = {each.task_id: self._work(each) for each in (self, *others)}
        if own.source:  # a task that picks one claim of a list does not work on it
            work = {name: [each for each in some if each != own.source[0].task_id] for name, some in work.items()}
        if not others or not work[self.task_id]:
            return "", False
        known = states(self, ti, {*work, *(each for some in work.values() for each in some)} - {self.task_id})
        if not all(_is_skipped(each, known) for each in work[self.task_id]):
            return "", False
        rivals = []
        for other in others:
            found = [state for _, state in _of(other.task_id, known)]
            if settles(other):
                may = "skipped" not in found and not all(_is_skipped(each, known) for each in work[other.task_id])
                certain = getattr(other.trigger_rule, "value", other.trigger_rule) == "all_done"
            else:
                may = {"skipped", "upstream_failed"}.isdisjoint(found)
                certain = bool(found) and None not in found
            rivals += [(certain, str(other.task_id))] if may else []
        certain, name = max(rivals, default=(False, ""))
        return name, certain

    def _undone(self, context: Context) -> tuple[dict[str, str], bool]:
        """Return why the claim must not be settled, and whether its work has failed.

        The reasons are states of tasks in this run, such as ``{"load": "is failed"}``. There are none if every task
        directly upstream has succeeded, each task between the sensor and this one has ended, and all have begun to work
        after the claim was handed on.
        """
        if not (work := self._work()):
            return {"no task": "that works on the claim is directly upstream"}, False
        ti: Any = context["ti"]
        origin = handed_on.origin(self, context, claimed(self.claim, "id") or "", claimed(self.claim, "taken_at"))
        sensor = origin.sensor
        among = between(sensor, self) if sensor else self.get_flat_relative_ids(upstream=True)
        known = states(self, ti, among.union(work))
        undone = {f"claim {claimed(self.claim, 'id')}": origin.doubt} if origin.doubt else {}
        if sensor and not among:
            undone["no task"] = f"between {sensor.task_id} and this task works on the claim"
        if sensor and not isinstance(sensor, MappedOperator):  # of a mapped one, it is not known which instance it was
            taken = states(self, ti, [sensor.task_id])
            undone |= {name: f"is {state}" for name, state in taken.items() if state != "success"}
        # A person may have marked a task directly upstream while one further upstream has not ended.
        undone |= {name: f"is {state}" for each in among for name, state in _of(each, known) if state not in _ENDED}
        bad = _bad(work, known, ("success", "skipped"))
        skipped = {name: "is skipped" for each in work for name, state in _of(each, known) if state == "skipped"}
        if skipped and self.settle_skipped:
            # Airflow skips what has not begun when a person marks a run, also if nothing has been worked on.
            bad |= _bad(among, known, ("success", "skipped"))
            doubt = "in a teardown, which also runs after a person has marked the run" if self.is_teardown else ""
            if origin.clears != handed_on.clears(context):
                doubt = "in a run that was cleared after the claim was handed on"
            skipped = {name: f"is skipped, which does not count {doubt}" for name in skipped if doubt}
        return undone | bad | skipped, any("failed" in state for state in bad.values())


def _check(settle_skipped: object, on_settled: str) -> None:
    """Check what is known when the DAG is parsed."""
    yes_or_no("settle_skipped", settle_skipped)
    if not templated(on_settled):
        check_on_settled(on_settled, JetStreamSettleOperator.on_settled_choices)


def _is_skipped(task_id: str, known: Mapping[str, str | None]) -> bool:
    """Whether a task has instances, and all of them were skipped."""
    found = [state for _, state in _of(task_id, known)]
    return bool(found) and all(state == "skipped" for state in found)


def _only_skipped(undone: Mapping[str, str]) -> bool:
    return set(undone.values()) == {"is skipped"}


def _bad(task_ids: Iterable[str], known: Mapping[str, str | None], good: Collection[str]) -> dict[str, str]:
    """Return the instances of tasks whose states are not good, each with its state."""
    bad: dict[str, str] = {}
    for task_id in sorted(task_ids):
        found = _of(task_id, known)
        bad |= {name: f"is {state}" for name, state in found if state not in good}
        if not found:
            bad[task_id] = "has not run"
    return bad


def _of(task_id: str, known: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    """Return the instances of a task, except those that no longer exist because there are fewer claims now."""
    own = [(name, state) for name, state in known.items() if name == task_id or name.startswith(f"{task_id}[")]
    return [(name, state) for name, state in own if state != "removed"]
