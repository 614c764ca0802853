# SPDX-License-Identifier: Apache-2.0
"""One list of claims from the lists of a mapped pull sensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.dag.mapping import check_mappable, most_claims
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors.unhanded import handing_on

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg


def all_claims(
    claims: XComArg,
    *,
    task_id: str = "all_claims",
    nats_conn_id: str = JetStreamHook.default_conn_name,
    **parameters: Any,
) -> XComArg:
    """Create a task that returns the claims of all instances of a mapped pull sensor in one list.

    claims:        the output of the sensor.
    task_id:       the id of the task.
    nats_conn_id:  the id of the Airflow connection, with which claims are released that cannot be handed on. Default
                   ``nats_default``. (templated)
    parameters:    other parameters of an Airflow operator. The default ``trigger_rule`` is
                   ``none_failed_min_one_success``: if the sensor has ``soft_fail=True``, the claims of some instances
                   are handed on although others have timed out.

    Each instance of a mapped sensor returns a list, so a task that is mapped over the output of the sensor would get a
    list in the place of a claim::

        sensor = JetStreamPullSensor.partial(task_id="claims", stream="S", soft_fail=True)
        claims = sensor.expand(consumer=["east", "west"])
        work.expand(claim=all_claims(claims.output))

    Returns the output of the task, for ``expand``. The claims are in the order of the sensor's instances. The task
    fails, and releases the claims, if there are more than Airflow can map (``[core] max_map_length``).
    """
    every = AllClaims(task_id=task_id, claims=claims, nats_conn_id=nats_conn_id, **parameters)
    return every.output


class AllClaims(BaseOperator):
    """The operator of :func:`all_claims`, which has the same parameters."""

    template_fields: Sequence[str] = ("claims", "nats_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"claims": "json"}
    ui_color = "#375c93"
    ui_fgcolor = "#ffffff"
    passes_claims_on = True

    def __init__(self, *, claims: Any, nats_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**{"trigger_rule": "none_failed_min_one_success", **kwargs})
        self.claims = claims
        self.nats_conn_id = nats_conn_id

    def execute(self, context: Context) -> list[Mapping[str, Any]]:
        lists = list(self.claims or ())
        if wrong := next((each for each in lists if not isinstance(each, list)), None):
            raise AirflowFailException(
                f"all_claims got a {type(wrong).__name__} in the place of a list of claims; give it the output of a "
                "mapped pull sensor, and map tasks over the output of a sensor that is not mapped"
            )
        claims = [claim for each in lists for claim in each]
        with handing_on(self, context, claims):
            check_mappable(claims, most_claims(self))
        return claims
