"""A source whose changes are captured as Debezium does it, the DAG that follows it, and attempts that are killed.

The source is a table of Postgres. A trigger captures each change of it, in the order of the source's log. Another
trigger notes each change of the DAG's table in the transaction that makes it, so that the judge, which is SQL, sees all
of them, whoever reads the table in between.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.hold import answers, settle
from tests.airflow_nats_jetstream.steps import execute
from tests.dag_file import dag_of

if TYPE_CHECKING:
    from demo.postgres import Postgres
    from pyspark_jetstream.held_claim import HeldClaim
    from tests.jetstream_tables.formats import Sql

DAG_ID = "changes_to_table"
SUBJECT = "shop.public.customers"
WRITING, COMMITTED, HOLDING, SETTLED = POINTS = ("writing", "committed", "holding", "settled")
"""Where an attempt is killed: in the middle of its transaction, after the commit, before it reads, and when its claim
is settled and the messages are not acknowledged yet."""
PRELOADED = [__name__, "pytest", "psycopg2", "pandas", "anyio._backends._asyncio", "airflow_nats_jetstream.sensors"]
PRELOADED += ["airflow.sdk.execution_time.supervisor", "airflow.providers.standard.decorators.python"]
PRELOADED += ["jetstream_client.wire.control", "jetstream_handoff.hold.messages", "jetstream_handoff.ledger.skipped"]
PRELOADED += ["jetstream_tables.messages", "jetstream_tables.transaction"]
"""What each attempt's process has imported when it is forked."""

SOURCE = """
create table source (id bigint primary key, name text not null, points bigint not null);
create table log (n bigserial primary key, id bigint, op text, before jsonb, after jsonb, lsn bigint);
create function capture() returns trigger language plpgsql as 'begin
    insert into log (id, op, before, after, lsn) values (
        coalesce(new.id, old.id), lower(replace(left(tg_op, 1), ''I'', ''c'')), to_jsonb(old), to_jsonb(new),
        pg_current_wal_insert_lsn() - ''0/0'');
    return null;
end';
insert into source select id, 'first', 0 from generate_series(1, {keys} / 2) id;
insert into log (id, op, after, lsn)
    select id, 'r', to_jsonb(source), pg_current_wal_insert_lsn() - '0/0' from source order by id;
create trigger capture after insert or update or delete on source for each row execute function capture();
do $$ declare
    missing integer := {changes} - {keys} / 2;
    key bigint;
begin
    perform setseed({seed});
    while missing > 0 loop
        key := 1 + floor({keys} * random() ^ 2);
        if random() < 0.15 then delete from source where id = key;
        else insert into source values (key, 'name ' || missing, missing)
            on conflict (id) do update set name = excluded.name, points = excluded.points;
        end if;
        if found then missing := missing - 1; end if;
    end loop;
end $$;
"""
NOTED = """
create table noted (n bigserial primary key, id bigint, lsn bigint);
create function note() returns trigger language plpgsql as 'begin
    insert into noted (id, lsn) values (coalesce(new.id, old.id), new.lsn);
    return null;
end';
create trigger note after insert or update or delete on customers for each row execute function note();
"""
DIFFERENT = """
select count(*) from (
    (select id, name, points from source except all select id, name, points from customers) union all
    (select id, name, points from customers except all select id, name, points from source)) rows
"""
# The changes of each key: in the table, all those of the source, in its order, each once. A deletion has no position.
OTHERWISE = """
with wanted as (
    select id, row_number() over (partition by id order by n), case when op <> 'd' then lsn end from log
), found as (
    select id, row_number() over (partition by id order by n), lsn from noted
)
select count(*) from (
    (select * from wanted except all select * from found) union all
    (select * from found except all select * from wanted)) changes
"""
BACK = """
select count(*) from (
    select lsn < max(lsn) over (partition by id order by n rows between unbounded preceding and 1 preceding) as back
    from noted) steps where back
"""


def warehouse(postgres: Postgres, schema: str) -> str:
    """The connection `warehouse` of the DAG, as an environment variable has it, with this schema for its tables."""
    folder = postgres.uri("psycopg2").partition("host=")[2]
    extra = {"options": f"-csearch_path={schema}"}
    return json.dumps(
        {"conn_type": "postgres", "host": folder, "login": "postgres", "schema": "postgres", "extra": extra}
    )


def envelope(op: str, before: object, after: object, lsn: int = 1) -> bytes:
    """A change as Debezium's connector for Postgres writes it, as JSON without schemas."""
    source: dict[str, object] = {
        "connector": "postgresql",
        "name": "shop",
        "snapshot": str(op == "r").lower(),
        "db": "shop",
    }
    source |= {"schema": "public", "table": "customers", "lsn": lsn}
    return json.dumps({"before": before, "after": after, "source": source, "op": op}).encode()


def quick(sensor: Any, ack_wait: float = 1, **changes: Any) -> Any:
    """The sensor of the DAG, but in this process, for a consumer with a short `ack_wait`."""
    changes = {"deferrable": False, "gather": timedelta(seconds=0.1), "timeout": 300, **changes}
    sensor.consumer_config = {**(sensor.consumer_config or {}), "ack_wait": timedelta(seconds=ack_wait)}
    for name, value in changes.items():
        setattr(sensor, name, value)
    return sensor


def run(claim: Mapping[str, Any], work: Callable[[HeldClaim], Any], **instance: Any) -> Any:
    """Run the mapped task of a claim, in an operator that is not mapped."""
    return execute(JetStreamProcessOperator(task_id="apply", python_callable=work, op_args=[claim]), **instance)


def attempt(environment: Mapping[str, str], claim: Mapping[str, Any], dies: str, instance: Mapping[str, Any]) -> None:
    """One attempt in this process, which kills itself at one of the points, if one is given."""
    os.environ.update(environment)
    settle.BELIEVED = 0  # type: ignore[attr-defined] # because no server is killed here
    apply = dag_of(DAG_ID).get_task("apply").python_callable

    def work(claim: HeldClaim) -> Any:
        if dies == HOLDING:
            die()
        if dies == SETTLED:
            vars(answers)["acknowledge"] = dying
        if dies in {WRITING, COMMITTED}:
            vars(claim)["transaction"] = partial(transaction, claim, claim.transaction, dies)
        return apply(claim)

    run(claim, work, **instance)


@contextmanager
def transaction(claim: HeldClaim, real: Any, dies: str, connection: Any, table: str) -> Iterator[Any]:
    """The transaction of a claim in which, or after which, the process is killed."""
    with real(connection, table) as tx:
        left = iter(range(claim.count // 2))

        def execute(*statement: Any) -> None:
            tx.execute(*statement)
            if dies == WRITING and next(left, None) is None:
                die()

        yield SimpleNamespace(new=tx.new, execute=execute)
    die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def dying(*_: object) -> None:
    die()


@dataclass
class Changes:
    """A source whose changes are in the stream CHANGES, and the table that follows it.

    changes:  how many there are, without the tombstones after deletions.
    keys:     the number of rows, half of which are in the snapshot with which the changes begin.
    kills:    how many attempts are killed, one in each third claim. Half of them are retried. The messages of the
              others are redelivered when their lease has ended.
    """

    hook: JetStreamHook
    sql: Sql
    changes: int
    keys: int
    kills: int
    published: int = 0
    batches: int = 0
    claims: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    def publish(self, seed: float) -> None:
        """Make and capture the changes, and publish all of them. `seed` is from 0 to 1."""
        self._ask(SOURCE.format(changes=self.changes, keys=self.keys, seed=seed))
        messages = [*self._messages()]
        publish_all(self.hook.settings, messages)
        self.published = len(messages)

    def _messages(self) -> Iterator[tuple[str, bytes]]:
        for key, *change in self._ask("select id, op, before, after, lsn from log order by n"):
            yield f"{SUBJECT}.{key}", envelope(*change)
            if change[0] == "d":
                yield f"{SUBJECT}.{key}", b""

    def follow(self, environment: Mapping[str, str], **sensor: Any) -> None:
        """Run the DAG until everything is committed."""
        made = dag_of(DAG_ID)
        execute(made.get_task("create"))
        self._ask(NOTED)
        claims = quick(made.get_task("claims"), **sensor)
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(PRELOADED)
        while self.committed() < self.published:
            taken = execute(claims, run_id=f"run {self.batches}")
            self.batches += 1
            with ThreadPoolExecutor(len(taken)) as pool:
                works = [
                    pool.submit(self._work, processes, environment, claim, at, *self._death())
                    for at, claim in enumerate(taken)
                ]
            for each in works:
                each.result()

    def _death(self) -> tuple[str, bool]:
        """Where the next claim's first attempt is killed, if at all, and whether it is retried."""
        killed = self.killed.total()
        self.claims += 1
        if self.claims % 3 != 1 or killed == self.kills:
            return "", False
        point = POINTS[killed % len(POINTS)]
        self.killed[point] += 1
        return point, (killed + killed // len(POINTS)) % 2 == 1

    def _work(  # noqa: PLR0917 - an attempt and its end
        self,
        processes: Any,
        environment: Mapping[str, str],
        claim: Mapping[str, Any],
        at: int,
        dies: str,
        retried: bool,
    ) -> None:
        ends = {0: -signal.SIGKILL if dies else 0} | ({1: 0} if retried else {})
        for number, end in ends.items():
            instance = {"run_id": f"run {self.batches}", "map_index": at, "try_number": number + 1, "max_tries": 2}
            process = processes.Process(target=attempt, args=(environment, claim, "" if number else dies, instance))
            process.start()
            process.join()
            assert process.exitcode == end, (claim["id"], dies, instance)

    def committed(self) -> int:
        """How many messages the ledger calls done."""
        return sum(each.processed.count for each in self.hook.committed("CHANGES", "customers")) if self.batches else 0

    def judged(self) -> dict[str, int]:
        """What is wrong with the table, as SQL finds it: rows that differ from those of the source; changes that are
        not those of the source, in its order; and changes with which a row went back."""
        questions = {"different": DIFFERENT, "otherwise": OTHERWISE, "back": BACK}
        return {name: self._ask(question)[0][0] for name, question in questions.items()}

    def _ask(self, statement: str) -> list[Any]:
        return self.sql.execute(f"set search_path to {self.sql.schema};{statement}")
