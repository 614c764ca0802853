"""The rules for a whole DAG about what is between a pull sensor and the tasks that process or settle its claims."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_nats_jetstream.dag.sensor_rules import RULES
from tests.airflow_versions import dag_bag

DAGS = sorted((Path(__file__).parents[2] / "dags").glob("*.py"))
HEAD = """
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group
from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor, JetStreamPullSensor

@task.jetstream
def work(claim): ...

@task
def load(claim): ...

@task
def every(claims): ...

@task_group
def each(claim): work(claim)

with DAG("d", schedule=None) as dag:
    claims = JetStreamPullSensor(task_id="claims", stream="S", consumer="c")
    many = JetStreamPullSensor(task_id="many", stream="S", consumer="d", max_messages=2000, messages_per_claim=1)
    few = JetStreamPullSensor(task_id="few", stream="S", consumer="g", messages_per_claim=5)
    ordered = JetStreamPullSensor(task_id="ordered", stream="S", consumer="h", ordered_by="{2}", claims=2000)
    mapped = JetStreamPullSensor.partial(task_id="mapped", stream="S").expand(consumer=["e", "f"])
    settle = JetStreamSettleOperator(task_id="settle", claim="{{ params.claim }}")
"""


def made(body: str) -> dict[str, Any]:
    """The names in a DAG's file with this body."""
    names: dict[str, Any] = {"__name__": "d"}
    exec(HEAD + textwrap.indent(textwrap.dedent(body), "    "), names)
    return names


def broken(body: str) -> str:
    """What the rules say of a DAG with this body; empty if nothing is wrong."""
    names = made(body)
    return "\n".join(problem for rule in RULES for problem in rule(names["dag"]))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "claims >> load(claims.output) >> settle.as_teardown(setups=claims)",
            "'claims' is a setup.*'settle' is a teardown",
        ),
        ("claims >> load(claims.output) >> settle.as_teardown()", "^the settling task 'settle' is a teardown"),
        ("claims.as_setup() >> load(claims.output) >> settle", "^the pull sensor 'claims' is a setup"),
        (
            "claims >> EmptyOperator(task_id='e', trigger_rule='always') >> settle",
            "^because of its trigger rule, e may begin before the sensor claims has handed on its claims",
        ),
        (
            "work.expand(claim=many.output)",
            "^the pull sensor 'many': messages_per_claim=1.*up to 2000 claims.*messages=1024 or.*_claim=2 or more",
        ),
        ("work.expand(claim=ordered.output)", "^the pull sensor 'ordered': claims=2000: .*max_map_length=1024"),
        ("each.expand(claim=many.output)", "^the pull sensor 'many': messages_per_claim=1"),
        (
            "work.override(depends_on_past=True).expand(claim=claims.output)",
            "^task 'work' has depends_on_past=True.*set depends_on_past=False.*'claims' only, or give the DAG max_acti",
        ),
        (
            "load.override(wait_for_downstream=True)(claims.output) >> settle",
            "^task 'load' has wait_for_downstream=True",
        ),
    ],
)
def test_a_dag_that_breaks_a_rule(body: str, says: str) -> None:
    assert re.search(says, broken(body), re.DOTALL)


@pytest.mark.parametrize(
    "body",
    [
        "claims >> load(claims.output) >> settle",
        "work.expand(claim=few.output)",
        "load(many.output)",  # one task gets all of its claims
        "work.expand(claim=all_claims(mapped.output))",
        "each.expand(claim=all_claims(mapped.output))",
        "every.expand(claims=mapped.output)",  # a task for each sensor, which gets a list
        "claims.depends_on_past = True; work.expand(claim=claims.output)",  # nothing is taken yet
        "work.expand(claim=claims.output) >> EmptyOperator(task_id='report', depends_on_past=True)",
        "EmptyOperator(task_id='clean', trigger_rule='always') >> EmptyOperator(task_id='t').as_teardown()",
    ],
)
def test_a_dag_that_breaks_none(body: str) -> None:
    assert broken(body) == ""


@pytest.mark.parametrize(("body", "most"), [("work.expand(claim=few.output)", 5 * 1024), ("load(few.output)", 10_000)])
def test_a_take_that_names_no_number_makes_no_more_claims_than_airflow_maps(body: str, most: int) -> None:
    assert made(body)["few"]._taking(("dag",)).max_messages == most


@pytest.mark.parametrize("file", DAGS, ids=lambda file: file.stem)
def test_the_examples_break_none(file: Path) -> None:
    bag = dag_bag(file)
    assert not bag.import_errors
    assert [problem for dag in bag.dags.values() for rule in RULES for problem in rule(dag)] == []
