"""The script of the README, on the session of the other tests. `make cluster` runs it where only pyspark, pyarrow and
this package are installed."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings, connect
from tests.snippets import sections

README = Path(__file__).parents[2] / "README.md"
STREAM = {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True}


def script(url: str) -> str:
    """The script, for the server at this URL."""
    (section,) = (each for each in sections(README) if each.title == "Spark alone")
    assert "nats://127.0.0.1:4222" in section.source
    return section.source.replace("nats://127.0.0.1:4222", url)


def check_output(text: str) -> None:
    shown = re.findall(r"\|(orders\.\d)\|\s*(\d+)\|", text)
    assert shown == [("orders.0", "334"), ("orders.1", "333"), ("orders.2", "333")]


async def test_the_readmes_script_writes_and_reads_a_stream(
    spark: SparkSession, settings: ConnectionSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    async with connect(settings) as js:
        stream = await js.create_stream(STREAM)
        exec(script(settings.servers[0]), {"__name__": "__main__"})
        check_output(capsys.readouterr().out)
        assert (await stream.info(patience=60)).state["messages"] == 1_000
        await stream.delete()
