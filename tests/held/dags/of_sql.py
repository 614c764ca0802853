"""SQLExecuteQueryOperator."""

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from tests.held.around import ATTEMPT, held

held(
    "sql",
    SQLExecuteQueryOperator,
    conn_id="postgres_default",
    sql=f"insert into held select '{ATTEMPT}', {{{{ claim.count }}}} returning attempt",
    split_statements=False,
)
