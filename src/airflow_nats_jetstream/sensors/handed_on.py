# SPDX-License-Identifier: Apache-2.0
"""What a pull sensor tells the settling tasks downstream of it: the claims that it has handed on, after it has made
sure that no task had begun to work before them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.dag.between import taking
from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from airflow.sdk import Context

_NEW_RUN = "start a new run, or clear the pull sensor with all tasks downstream of it"
KEY = "jetstream_handed_on"
"""The key of the sensor's XCom: the claims' ids, and how many times the run had been cleared."""


def tell(context: Context, claims: Iterable[Mapping[str, Any]]) -> None:
    """Push the XCom of a sensor that hands on claims.

    context:  the sensor's context.
    claims:   the claims as JSON.
    """
    ti: Any = context["ti"]
    ti.xcom_push(KEY, {"claims": [claim["id"] for claim in claims], "clears": clears(context)})


def clears(context: Context) -> int:
    """Return how many times tasks of the run have been cleared. Airflow counts each clear, whichever tasks it names."""
    return int(getattr(context.get("dag_run"), "clear_number", 0) or 0)


@dataclass(frozen=True)
class Origin:
    """Where the claim of a settling task comes from.

    sensor:  the pull sensor of the same run that handed it on; None if it comes from elsewhere.
    clears:  how many times the run had been cleared when the claim was handed on.
    doubt:   why tasks of the run may have begun to work before the claim was handed on; empty if they cannot.
    """

    sensor: Any
    clears: int = 0
    doubt: str = ""


def origin(task: Any, context: Context, claim_id: str, taken_at: str | None) -> Origin:
    """Return the origin of the claim of a settling task.

    task:      the settling task.
    context:   its context.
    claim_id:  the id of the claim.
    taken_at:  when the claim was taken, if it is known.
    """
    ti, run, sensors = context["ti"], context.get("dag_run"), taking(task)
    for sensor in sensors:
        told = [each for each in _all(ti, sensor.task_id, KEY) if isinstance(each, Mapping)]
        for each in told:
            if claim_id in each["claims"]:
                return Origin(sensor, int(each["clears"]))
    cleared = clears(context)
    for sensor in sensors:
        if claim_id in _ids(_all(ti, sensor.task_id, "return_value")):
            # An earlier release of this package has handed it on, without looking at other tasks.
            doubt = f"was handed on by an earlier release in a run that was cleared; {_NEW_RUN}" if cleared else ""
            return Origin(sensor, doubt=doubt)
    began = getattr(run, "start_date", None)
    if f'"{claim_id}"' in json.dumps(getattr(run, "conf", None) or {}, default=str):
        return Origin(None)
    if taken_at and began and not cleared and time_nanoseconds(taken_at) <= began.timestamp() * 1e9:
        return Origin(None)
    remedy = "put the pull sensor upstream of this task, or pass the claim in the conf of the run"
    return Origin(
        None, doubt=f"was not handed on by a pull sensor upstream, so work may have begun before it; {remedy}"
    )


def _ids(returned: Iterable[Any]) -> set[Any]:
    """Return the ids of claims in the return values of sensors."""
    claims = [claim for each in returned if isinstance(each, list) for claim in each]
    return {claim.get("id") for claim in claims if isinstance(claim, Mapping)}


def _all(ti: Any, task_id: str, key: str) -> list[Any]:
    """Return the XComs of all instances of a task. Airflow returns a single one without a list."""
    pulled = ti.xcom_pull(task_ids=[task_id], key=key)
    return list(pulled or ())
