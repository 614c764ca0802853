"""The script of the README, where only pyspark, pyarrow and this wheel are installed; `make cluster` runs it."""

import os
import subprocess
from pathlib import Path

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from tests.pyspark_jetstream.test_readme import STREAM, check_output, script


async def test_the_readmes_script_writes_and_reads_a_stream(
    nats_server: NatsServer, spark_environment: None, python: Path, tmp_path: Path
) -> None:
    program = tmp_path / "orders.py"
    program.write_text(script(nats_server.url))
    kept = {
        name: os.environ[name]
        for name in ("HOME", "JAVA_HOME", "SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS")
        if name in os.environ
    }
    activated = {**kept, "PATH": f"{python.parent}:{os.environ['PATH']}"}  # and nothing of the other tests' Spark
    async with connect(ConnectionSettings(servers=nats_server.url)) as js:
        stream = await js.create_stream(STREAM)
        run = subprocess.run(  # noqa: ASYNC221 - nothing else goes on here
            [python, program], cwd=tmp_path, env=activated, capture_output=True, text=True, timeout=300, check=False
        )
        assert run.returncode == 0, run.stderr
        check_output(run.stdout)
        assert (await stream.info(patience=60)).state["messages"] == 1_000
        await stream.delete()
