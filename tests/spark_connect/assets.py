"""Dagster assets that use a Spark Connect server: ``python -m tests.spark_connect.assets FOLDER``, with the settings on
standard input.

One reads its claim in its step, the other in a Pipes process.
"""

import json
import sys
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pipes import PipesContext, open_dagster_pipes

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from jetstream_client import ConnectionSettings
from jetstream_handoff.claim import Claim
from pyspark_jetstream import decoded, read_claim, spark_session

CONSUMER = "assets"


def asset(name: str, body: Any) -> dg.AssetsDefinition:
    return claimed_asset(stream="ASSETS", consumer=CONSUMER, max_messages=500, resource="nats_default", name=name)(body)


def main(folder: Path, settings: str) -> int:
    def in_the_step(claim: HeldClaim) -> int:
        good, malformed = decoded(claim.read(spark_session()), "number INT")
        claim.reject(malformed)
        good.select("sequence", "number").write.parquet(str(folder / "out" / claim.attempt_id))
        return claim.count

    def in_a_process(context: dg.AssetExecutionContext, claim: HeldClaim) -> Any:
        command = [sys.executable, "-m", "tests.spark_connect.assets", str(folder), "pipes"]
        client = dg.PipesSubprocessClient()
        run = client.run(context=context, command=command, extras=claim.extras, env=claim.environment)
        return run.get_materialize_result()

    assets = [asset("in_the_step", in_the_step), asset("in_a_process", in_a_process)]
    known = ConnectionSettings.from_json(settings)
    given = {**json.loads(settings), "servers": ",".join(known.servers), "ledger": known.ledger}
    resources = {"nats_default": JetStreamResource(**given)}
    return sum(not dg.materialize([each], resources=resources, raise_on_error=False).success for each in assets)


def work(pipes: PipesContext, folder: Path) -> None:
    """What the Pipes process does."""
    claim = Claim.from_json(pipes.get_extra("claim"))
    messages = read_claim(spark_session(), claim, connection=pipes.get_extra("connection"))
    messages.select("sequence").write.parquet(str(folder / "out" / pipes.get_extra("attempt_id")))
    pipes.report_asset_materialization(metadata={"rows": claim.count})


if __name__ == "__main__":
    if sys.argv[2:] == ["pipes"]:
        with open_dagster_pipes() as context:
            work(context, Path(sys.argv[1]))
        sys.exit()
    sys.exit(main(Path(sys.argv[1]), sys.stdin.read()))
