"""Settling a claim on which several tasks, or another engine, have worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_nats_jetstream import sensors
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.claim_task import ClaimTask
from airflow_nats_jetstream.template import claimed

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

OnSettled = Literal["return", "fail"]


class JetStreamSettleOperator(ClaimTask, BaseOperator):
    """Settle a claim when every task directly upstream has succeeded; otherwise give it back, and fail.

    claim:           as the pull sensor returned it; map over it. (templated)
    value:           what is recorded with the settlement, and the XCom: JSON, at most 8 KiB, for example where the
                     output is. Readers find it with :meth:`JetStreamHook.committed`. (templated)
    settle_skipped:  a task upstream that was skipped counts as a success. Default: it does not.
    on_settled:      what to do with a claim that is settled already: ``"return"`` the recorded value (default), or
                     ``"fail"`` without retry. (templated)

    Its trigger rule is ``all_done`` by default, so that failed work gives its messages back at once. It then fails
    itself, because a run whose last task succeeds would count as successful. Or make it a teardown of the pull sensor:
    ``settle.as_teardown(setups=claims)``. docs/several-tasks.md says what clear, retry and teardown do.

    Work that takes longer than the pull sensor's ``hand_off_timeout`` needs a
    :class:`~airflow_nats_jetstream.sensors.JetStreamHoldSensor` next to it.

    Raises:
        AirflowFailException: the work did not succeed, no task has worked, or the messages belong to another run now.
        InvalidValue: the value is no JSON or too large; nothing was settled.
        JetStreamError: what else went wrong; a retry settles.
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
                    blame = any("failed" in state for state in undone.values())
                    held.fail(f"in {ti.dag_id}, run {ti.run_id}: {why}", blame=blame)
                    raise AirflowFailException(f"the claim is failed and its messages are redelivered, because {why}")
                held.settle(self.value)
            return self.value

        return self._outcome(decide, undone=why)

    def dry_run(self) -> None:
        """Say which tasks must have succeeded."""
        print(f"settles claim {claimed(self.claim, 'id')} after {', '.join(self._work()) or 'nothing: it would fail'}")  # noqa: T201

    def _work(self) -> list[str]:
        """The tasks directly upstream but those that take claims."""
        return [each for each in sorted(self.upstream_task_ids) if not _takes(self.dag.get_task(each))]

    def _undone(self, ti: RuntimeTaskInstance) -> dict[str, str]:
        """Which work did not succeed in this run, and what became of it; empty when all of it did."""
        work = self._work()
        if not work:
            return {"work": "is missing: no task is upstream whose success this could settle"}
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
        """Of the instance that worked on this claim: in one mapped group with this task the same; else all count."""
        group = self.get_closest_mapped_task_group()
        other = self.dag.get_task(task_id).get_closest_mapped_task_group()
        return ti.map_index if group is not None and other is not None and group.group_id == other.group_id else None


def _takes(task: Any) -> bool:
    return issubclass(getattr(task, "operator_class", type(task)), sensors.JetStreamPullSensor)
