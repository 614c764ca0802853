"""The script of the README, on the session of the other tests. `make cluster` runs it where only pyspark, pyarrow and
this package are installed."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings, connect

README = Path(__file__).parents[2] / "README.md"


async def test_the_readmes_script_writes_and_reads_a_stream(
    spark: SparkSession, settings: ConnectionSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    section = README.read_text().partition("## Spark alone")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
        exec(found[1].replace("nats://127.0.0.1:4222", settings.servers[0]), {"__name__": "__main__"})
        shown = re.findall(r"\|(orders\.\d)\|\s*(\d+)\|", capsys.readouterr().out)
        assert shown == [("orders.0", "334"), ("orders.1", "333"), ("orders.2", "333")]
        assert (await stream.info(patience=60)).state["messages"] == 1_000
        await stream.delete()
