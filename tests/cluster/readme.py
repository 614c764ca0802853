"""The script of the README, where only pyspark, pyarrow and this wheel are installed; `make cluster` runs it."""

import os
import re
import subprocess
from pathlib import Path

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from tests.cluster.environment import PROJECT

STREAM = {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True}


async def test_the_readmes_script_writes_and_reads_a_stream(
    nats_server: NatsServer, spark_environment: None, python: Path, tmp_path: Path
) -> None:
    section = (PROJECT / "README.md").read_text().partition("## Spark alone")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    script = tmp_path / "orders.py"
    script.write_text(found[1].replace("nats://127.0.0.1:4222", nats_server.url))
    kept = {
        name: os.environ[name]
        for name in ("HOME", "JAVA_HOME", "SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS")
        if name in os.environ
    }
    activated = {**kept, "PATH": f"{python.parent}:{os.environ['PATH']}"}  # and nothing of the other tests' Spark
    async with connect(ConnectionSettings(servers=nats_server.url)) as js:
        stream = await js.create_stream(STREAM)
        run = subprocess.run(  # noqa: ASYNC221 - nothing else goes on here
            [python, script], cwd=tmp_path, env=activated, capture_output=True, text=True, timeout=300, check=False
        )
        assert run.returncode == 0, run.stderr
        shown = re.findall(r"\|(orders\.\d)\|\s*(\d+)\|", run.stdout)
        assert shown == [("orders.0", "334"), ("orders.1", "333"), ("orders.2", "333")]
        assert (await stream.info(patience=60)).state["messages"] == 1_000
        await stream.delete()
