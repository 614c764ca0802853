"""Build the DAG of one shape. Each DAG has a separate file, so that Airflow refuses only those that are wrong."""

import json
import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, task, task_group

from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor, JetStreamPullSensor
from tests.dag_fuzz import broken, work
from tests.dag_fuzz.shape import COUNTRIES, Shape

CONSUMER = "work"
SOON = {"retry_delay": timedelta(seconds=1)}
FILE = (
    "# A DAG of Airflow, which tests.dag_fuzz.build describes.\nfrom tests.dag_fuzz.build import build\n\nbuild({!r})\n"
)


def build(dag_id: str) -> None:
    """Create the DAG."""
    broken.install()
    of: Shape = json.loads((Path(os.environ["DAG_FUZZ_SHAPES"]) / f"{dag_id}.json").read_text())
    past = {of["past"]: True} if of["past"] and not of["sensor"]["past"] else {}
    with DAG(dag_id, schedule=None, default_args={**SOON, **past}):
        claims = _claims(of)
        if of["kind"] == "settle":
            _settled(of, claims)
        else:
            _held(of, claims)


def _claims(of: Shape) -> Any:
    """The sensor, and a task that makes one list of the lists of a mapped sensor."""
    sensor = of["sensor"]
    parameters: dict[str, Any] = {
        "task_id": "claims",
        "stream": of["stream"],
        "consumer": CONSUMER,
        "messages_per_claim": sensor["per_claim"],
        "gather": timedelta(seconds=1),
        "hand_off_timeout": timedelta(seconds=60),
        "consumer_config": {"ack_wait": timedelta(seconds=10), "max_ack_pending": -1},
        "deferrable": sensor["deferrable"],
        "timeout": 30,
        "retries": sensor["retries"],
        **({of["past"]: True} if of["past"] and sensor["past"] else {}),
    }
    if sensor["mapped"]:
        most = [sensor["most"], 3][: sensor["mapped"]]
        mapped = JetStreamPullSensor.partial(**parameters, soft_fail=True).expand(max_messages=most)
        return all_claims(mapped.output, task_id="flat")
    taking = JetStreamPullSensor(**parameters, max_messages=sensor["most"])
    if sensor["setup"]:
        taking.as_setup()  # type: ignore[no-untyped-call]
    return taking.output


@task
def pick(claims: Any) -> Any:
    """Return the first claim."""
    return claims[0]


@task
def copy(claims: Any) -> Any:
    """Return the same claims."""
    return list(claims)


@task
def pairs(claims: Any, form: str) -> Any:
    """Return each claim with each country, as the arguments of a task of this form."""
    return [{"claim": claim, **_country(form, country)} for claim in claims for country in COUNTRIES]


def _country(form: str, country: str) -> dict[str, Any]:
    """The argument that says for which country a task works."""
    if form == "jetstream":
        return {"country": country}
    return {"op_kwargs": {"country": country}} if form == "python" else {"env": {"COUNTRY": country}}


def _held(of: Shape, claims: Any) -> None:
    """One or two tasks that hold each claim."""
    if of["kind"] == "group":

        @task_group
        def each(claim: Any) -> None:
            made = [_work(of, part, claim, mapped=False) for part in of["tasks"]]
            if len(made) == 2 and not of["parallel"]:
                made[0] >> made[1]
            _stage(of, claim, made)
            made[-1] >> EmptyOperator(task_id="after")

        each.expand(claim=claims)
        return
    one = pick(claims) if of["kind"] == "first" else claims
    given = [one, copy(claims) if of["hidden"] and of["kind"] == "two" else one]
    made = [
        _work(of, part, claim, mapped=of["kind"] != "first") for part, claim in zip(of["tasks"], given, strict=False)
    ]
    if len(made) == 2 and not of["parallel"]:
        made[0] >> made[1]
    _stage(of, one, made)
    if of["after"]:
        made[-1] >> EmptyOperator(task_id="after")


def _stage(of: Shape, claim: Any, works: list[Any]) -> None:
    """A plain task that makes something of the claim for the tasks that hold it, such as a staged file."""
    if of["stage"]:
        _plain(of["stage"])(claim, claim) >> works


def _work(of: Shape, part: Shape, claim: Any, *, mapped: bool) -> Any:
    """A task that holds a claim."""
    form, crossed = part["form"], of["kind"] == "cross"
    own = {"task_id": part["id"], **{name: part[name] for name in ("retries", "on_settled", "on_skip")}}
    if form == "jetstream":
        made = alone = task.jetstream(**own)(work.function(part, crossed))
    else:
        held = holding(PythonOperator if form == "python" else BashOperator)
        own["do_xcom_push"] = part["xcom"]
        if form == "python":
            own["python_callable"] = work.function(part, crossed)
        else:
            own |= {"bash_command": work.script(part), "append_env": True}
        made, alone = held.partial(**own), partial(held, **own)
    if not mapped:
        return alone(claim=claim)
    if not crossed:
        return made.expand(claim=claim)
    if of["hidden"]:
        return made.expand_kwargs(pairs(claim, form))
    (name,) = _country(form, "")
    return made.expand(claim=claim, **{name: [_country(form, each)[name] for each in COUNTRIES]})


def _settled(of: Shape, claims: Any) -> None:
    """Plain tasks that work on a claim, and one that settles it; in a mapped group, or for one claim."""
    if of["grouped"]:

        @task_group
        def each(claim: Any) -> None:
            _chain(of, claim, claims)

        each.expand(claim=claims)
    else:
        _chain(of, pick(claims), claims)


def _chain(of: Shape, claim: Any, claims: Any) -> None:
    parts = {part["id"]: part for part in of["tasks"]}
    last: Any = None
    ends = []
    for name in ("load", "check"):
        if name in parts:
            last = _plain(parts[name])(claim if last is None else last, claim)
    ends.append(last)
    if "audit" in parts:
        ends.append(_plain(parts["audit"])(claim, claim))
    if of["hold"]:
        JetStreamHoldSensor(task_id="hold", claim=claim, retries=2)
    chosen = of["settle"]
    settle = JetStreamSettleOperator(
        task_id="settle",
        claim=claim,
        value=last if chosen["value"] else None,
        settle_skipped=chosen["skipped"],
        on_settled=chosen["on_settled"],
        retries=chosen["retries"],
        **({"trigger_rule": chosen["rule"]} if chosen["rule"] else {}),
    )
    ends >> settle
    if chosen["teardown"]:
        settle.as_teardown(
            setups=claims.operator if chosen["teardown"] == "of sensor" else None,
            on_failure_fail_dagrun=chosen["fails_run"],
        )


def _plain(part: Shape) -> Any:
    """A task that does not know that there are claims: it gets a mapping."""

    @task(task_id=part["id"], retries=part["retries"], trigger_rule=part["rule"])
    def plain(given: Any, claim: Any) -> Any:
        given = given or claim  # if the task before it has failed, and the trigger rule allows that
        sequences = given.get("sequences") or [each for some in given["ranges"] for each in range(some[0], some[1] + 1)]
        return work.act(part, given.get("claim") or given["id"], sequences)

    return plain
