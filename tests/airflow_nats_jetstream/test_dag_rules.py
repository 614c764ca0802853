"""The rules for a whole DAG, as Airflow's own DagBag finds them through the installed entry point."""

import re
import textwrap
from pathlib import Path

import pytest

from tests.airflow_versions import dag_bag

HEAD = """
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task, task_group
from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor, JetStreamPullSensor

@task.jetstream
def parquet(claim, country=None): ...

@task.jetstream
def warehouse(claim, country=None): ...

@task
def listed(): return ["FR", "DE"]

@task
def load(claim): return claim["id"]

@task
def one(claims): return claims[0]

with DAG("d", schedule=None):
    claims = JetStreamPullSensor(task_id="claims", stream="S", consumer="c")
    mapped = JetStreamPullSensor.partial(task_id="mapped", stream="S").expand(consumer=["e", "f"])
"""


def errors(tmp_path: Path, body: str) -> str:
    """The import errors of a DAG with this body; empty if Airflow accepts it."""
    (tmp_path / "d.py").write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    "))
    bag = dag_bag(tmp_path)
    assert bool(bag.dags) != bool(bag.import_errors)
    return "\n".join(bag.import_errors.values())


BOTH = r"DAG 'd': the tasks '{}' and '{}' would both process the claims of task 'claims'.*a separate consumer"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "parquet.expand(claim=claims.output) >> warehouse.expand(claim=claims.output)",
            BOTH.format("parquet", "warehouse"),
        ),
        (
            """
            parquet.expand(claim=claims.output)
            holding(BashOperator).partial(task_id="bash", bash_command="true").expand(claim=claims.output)
            """,
            BOTH.format("parquet", "bash"),
        ),
        (
            """
            @task_group
            def each(claim):
                parquet(claim=claim) >> warehouse(claim)
            each.expand(claim=claims.output)
            """,
            BOTH.format("each.parquet", "each.warehouse"),
        ),
        (
            """
            @task_group
            def each(claim):
                load(claim) >> JetStreamSettleOperator(task_id="settle", claim=claim)
            each.expand(claim=claims.output)
            parquet.expand(claim=claims.output)
            """,
            BOTH.format("each.settle", "parquet"),
        ),
        (
            """
            parquet.override(task_id="one").expand(claim=claims.output)
            parquet.override(task_id="two").expand(claim=claims.output)
            """,
            BOTH.format("one", "two"),
        ),
        ('parquet.expand(claim=claims.output, country=["FR", "DE"])', r"'parquet' is mapped over 'country', so each"),
        ("parquet.expand(claim=claims.output, country=listed())", r"'parquet' is mapped over 'country', so each"),
        (
            """
            @task_group
            def each(claim, country):
                parquet(claim, country)
            each.expand(claim=claims.output, country=["FR", "DE"])
            """,
            r"'each.parquet' is mapped over 'country', so each",
        ),
        (
            'parquet.partial(claim=one(claims.output)).expand(country=["FR", "DE"])',
            r"'parquet' is mapped over 'country', so each",
        ),
        (
            'parquet.override(on_settled="returns").expand(claim=claims.output)',
            r"no instance of the mapped task 'parquet' can be made: on_settled='returns': give one of 'return'",
        ),
        ('parquet.override(on_skip="settled").expand(claim=claims.output)', r"'parquet'.*on_skip='settled': give one"),
        ('parquet.override(missing="skipp").expand(claim=claims.output)', r"'parquet'.*missing='skipp'"),
        ('parquet.override(longest_hold="1h").expand(claim=claims.output)', r"'parquet'.*longest_hold='1h': give a"),
        ('parquet.override(dead_letters="x y").expand(claim=claims.output)', r"'parquet'.*dead_letters='x y'"),
        ("parquet.override(nats_conn=1).expand(claim=claims.output)", r"'parquet'.*Invalid arguments.*nats_conn"),
        (
            """
            bash = holding(BashOperator).partial(task_id="bash", bash_command="true", on_settled="reprocess")
            bash.expand(claim=claims.output)
            """,
            r"'bash'.*on_settled='reprocess': give one of 'return', 'fail'",
        ),
        ("parquet(claims.output)", r"task 'parquet' gets the list of claims of sensor 'claims'.*\.expand\(claim="),
        (
            'JetStreamSettleOperator(task_id="settle", claim=claims.output)',
            r"task 'settle' gets the list of claims of sensor 'claims'",
        ),
        (
            'JetStreamHoldSensor(task_id="hold", claim=claims.output)',
            r"task 'hold' gets the list of claims of sensor 'claims'",
        ),
        ("parquet.expand(claim=mapped.output)", r"'parquet' gets a list.*'mapped' is itself mapped.*\(mapped.output\)"),
        (
            """
            @task_group
            def each(claim): parquet(claim)
            each.expand(claim=mapped.output)
            """,
            "'each.parquet' gets a list of claims",
        ),
        (
            'holding(BashOperator).partial(task_id="b", bash_command="true").expand(claim=mapped.output)',
            "'b' gets a list of claims",
        ),
        (
            """
            chosen = one(claims.output)
            load(chosen)
            JetStreamSettleOperator(task_id="settle", claim=chosen)
            """,
            r"'settle' waits for no task that works on its claim, but load also gets.*'one'.*\(load >> settle\)",
        ),
        (
            """
            every = all_claims(mapped.output)
            load.expand(claim=every)
            JetStreamSettleOperator.partial(task_id="settle").expand(claim=every)
            """,
            r"'settle' waits for no task that works on its claim, but load also gets.*'all_claims'",
        ),
    ],
)
def test_what_can_never_work_is_an_import_error(tmp_path: Path, body: str, said: str) -> None:
    assert re.search(said, errors(tmp_path, body), re.DOTALL)


@pytest.mark.parametrize(
    "body",
    [
        "parquet.expand(claim=claims.output)",
        'parquet.partial(country="FR").expand(claim=claims.output)',
        'parquet.expand(claim=claims.output, country=["FR"])',
        "parquet.expand_kwargs(claims.output.map(lambda claim: {'claim': claim, 'country': 'FR'}))",
        """
        JetStreamProcessOperator.partial(task_id="p", python_callable=parquet.function).expand(
            op_kwargs=claims.output.map(lambda claim: {"claim": claim})
        )
        """,
        # Which of the two runs is decided for each run.
        """
        @task.branch
        def engine(claims): return "parquet"
        engine(claims.output) >> [parquet.expand(claim=claims.output), warehouse.expand(claim=claims.output)]
        """,
        """
        @task.run_if(lambda context: context["params"]["full"])
        @task.jetstream
        def full(claim): ...
        @task.skip_if(lambda context: context["params"]["full"])
        @task.jetstream
        def rest(claim): ...
        full.expand(claim=claims.output)
        rest.expand(claim=claims.output)
        """,
        # A template may have another claim in each instance.
        """
        @task_group
        def each(consumer):
            own = JetStreamPullSensor(task_id="own", stream="S", consumer=consumer)
            claim = "{{ ti.xcom_pull('each.own')[0] | tojson }}"
            own >> holding(BashOperator)(task_id="bash", bash_command="true", claim=claim)
        each.expand(consumer=["e", "f"])
        """,
        # One claim of each list.
        """
        @task_group
        def each(claims): parquet(one(claims))
        each.expand(claims=mapped.output)
        """,
        "parquet.expand(claim=mapped.output.map(lambda claims: claims[0]))",
        # The settling task settles what `load` has returned, or others get the claim afterwards.
        """
        loaded = load(one(claims.output))
        load.override(task_id="report")(loaded)
        JetStreamSettleOperator(task_id="settle", claim=loaded)
        """,
        """
        chosen = one(claims.output)
        loaded = load(chosen)
        JetStreamHoldSensor(task_id="hold", claim=chosen)
        settle = JetStreamSettleOperator(task_id="settle", claim=chosen, value=loaded)
        load.override(task_id="report")(chosen)
        """,
        # Other claims, as far as can be seen.
        """
        parquet.expand(claim=claims.output.map(lambda claim: claim))
        warehouse.expand(claim=claims.output.map(lambda claim: claim))
        """,
        """
        @task_group
        def each(claim):
            loaded = load(claim)
            JetStreamHoldSensor(task_id="hold", claim=claim)
            JetStreamSettleOperator(task_id="settle", claim=claim, value=loaded)
        each.expand(claim=claims.output)
        """,
        """
        @task
        def pick(number, claims): return claims[number]
        @task_group
        def each(number):
            parquet(pick(number, claims.output))
        each.expand(number=[0, 1])
        """,
    ],
)
def test_other_dags_are_accepted(tmp_path: Path, body: str) -> None:
    assert errors(tmp_path, body) == ""
