# SPDX-License-Identifier: Apache-2.0
"""The operator that settles a claim after several tasks, or another engine, have worked on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_nats_jetstream import sensors
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators import ending, tries
from airflow_nats_jetstream.operators.claim_task import FOREIGN, ClaimTask
from airflow_nats_jetstream.template import claimed
from jetstream_handoff.errors import AlreadyDone

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

OnSettled = Literal["return", "fail"]


class JetStreamSettleOperator(ClaimTask, BaseOperator):
    """Settle a claim if every task directly upstream has succeeded; otherwise fail both the claim and this task.

    claim:           the claim as the pull sensor returned it; map over it with ``expand``. (templated)
    value:           the value to record with the settlement, which is also the XCom: JSON of at most 8 KiB, for example
                     the place of the output. Readers get the value from :meth:`JetStreamHook.committed`. Default None.
                     (templated)
    settle_skipped:  whether a skipped upstream task counts as successful. Default False.
    on_settled:      what to do with a claim that is already settled: ``"return"`` the recorded value (default), or
                     ``"fail"`` without retry. (templated)
    nats_conn_id:    the id of the Airflow connection. Default ``nats_default``. (templated)

    The default trigger rule is ``all_done``, so that the messages of failed work are redelivered at once. The task then
    also fails, because a run whose last task succeeds counts as successful. Alternatively, make it a teardown of the
    pull sensor: ``settle.as_teardown(setups=claims)``. docs/several-tasks.md describes the effects of a clear, a retry
    and a teardown.

    Work that takes longer than the pull sensor's ``hand_off_timeout`` needs a
    :class:`~airflow_nats_jetstream.sensors.JetStreamHoldSensor` that runs in parallel with it.

    Raises:
        AirflowFailException: the work did not succeed, no task that works on the claim is upstream, or the messages now
            belong to another run.
        InvalidValue: the value is not JSON or too large. Nothing was settled.
        JetStreamError: another error. A retry settles the claim.
    """

    template_fields: Sequence[str] = ("claim", "value", "on_settled", "nats_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"claim": "json", "value": "json"}
    ui_color = "#375c93"

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
        self.claim: Any = claim
        self.value = value
        self.settle_skipped = settle_skipped
        self.on_settled = on_settled
        self.nats_conn_id = nats_conn_id

    def execute(self, context: Context) -> Any:
        self._check_on_settled()
        ti: Any = context["ti"]
        undone = self._undone(ti)
        why = ", ".join(f"{name} {state}" for name, state in undone.items())

        def decide() -> Any:
            with JetStreamHook(self.nats_conn_id).holding(self.claim, try_number=ti.try_number) as held:
                self._held = held
                if undone:
                    if failed := any("failed" in state for state in undone.values()):
                        held.fail(f"in {ti.dag_id}, run {ti.run_id}: {why}")
                    else:
                        held.skip()
                    raise AirflowFailException(
                        f"the claim {'has failed' if failed else 'is released'} and its messages are redelivered, "
                        f"because its work has not succeeded ({why})"
                    )
                try:
                    ending.settle(held, self.value, self.value, self, context)
                except (AlreadyDone, *FOREIGN):
                    raise
                except BaseException:
                    # The work has succeeded, so its messages wait for the next try of this task.
                    if not (held.killed or held.ended or held.lost):
                        held.release(None if tries.is_last(ti) else tries.lease(self, ti))
                    raise
            return self.value

        return self._outcome(decide, undone=why)

    def dry_run(self) -> None:
        """Print which tasks must have succeeded."""
        work, claim = ", ".join(self._work()), claimed(self.claim, "id")
        nothing = f"would fail claim {claim}, because no task that works on it is directly upstream"
        print(f"would settle claim {claim} after these tasks have succeeded: {work}" if work else nothing)  # noqa: T201

    def _work(self) -> list[str]:
        """Return the tasks directly upstream, except those that take claims."""
        return [each for each in sorted(self.upstream_task_ids) if not _takes(self.dag.get_task(each))]

    def _undone(self, ti: RuntimeTaskInstance) -> dict[str, str]:
        """Return the tasks that did not succeed in this run, each with its state; empty if all succeeded."""
        work = self._work()
        if not work:
            return {"no task": "that works on the claim is directly upstream"}
        good = ("success", "skipped") if self.settle_skipped else ("success",)
        undone: dict[str, str] = {}
        for task_id in work:
            states = ti.get_task_states(
                dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[task_id], map_index=self._map_index(ti, task_id)
            ).get(ti.run_id, {})
            bad = {key: getattr(state, "value", state) for key, state in states.items() if state not in good}
            undone |= {key: f"is {state}" for key, state in bad.items()}
            if not states:
                undone[task_id] = "has not run"
        return undone

    def _map_index(self, ti: RuntimeTaskInstance, task_id: str) -> int | None:
        """Return the map index of the task instance that worked on this claim, or None for all instances.

        In a mapped task group that also contains this task, both tasks have the same map index.
        """
        group = self.get_closest_mapped_task_group()
        other = self.dag.get_task(task_id).get_closest_mapped_task_group()
        return ti.map_index if group is not None and other is not None and group.group_id == other.group_id else None


def _takes(task: Any) -> bool:
    return issubclass(getattr(task, "operator_class", type(task)), sensors.JetStreamPullSensor)
