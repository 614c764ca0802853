"""Publishing and consuming 128 B, compared with nats.js. Needs Node.js and npm, which installs nats.js into build/."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.comparison import HEAD, ROUNDS, Comparison, rate
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all, publish_fast

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "javascript"
MESSAGES = [(f"small.{number % 100}", b"x" * 128) for number in range(50_000)]


def main() -> int:
    for name in ("node", "npm"):
        if not shutil.which(name):
            print(f"{name} is not on PATH; install Node.js, which includes it", file=sys.stderr)
            return 1
    BUILD.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", "measure.mjs"):
        shutil.copy(HERE / file, BUILD)
    subprocess.run(["npm", "install", "--silent", "--no-package-lock"], cwd=BUILD, check=True)
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            settings = ConnectionSettings(servers=server.url)
            print(HEAD, flush=True)
            for what, ours in (
                ("publish", lambda: publish_all(settings, MESSAGES).stored),
                ("batch", lambda: publish_fast(settings, MESSAGES).batch_size),
                ("consume", lambda: asyncio.run(_consumed(settings))),
            ):
                print(_compare(settings, what, ours).row(), flush=True)
        finally:
            server.stop()
    return 0


def _compare(settings: ConnectionSettings, what: str, ours: Callable[[], int]) -> Comparison:
    comparison = Comparison(f"{what} 128 B, against nats.js", required=1, aim=2)
    for _ in range(ROUNDS):
        asyncio.run(_stream(settings))
        if what == "consume":
            publish_fast(settings, MESSAGES)
        command = ["node", "measure.mjs", settings.servers[0], what, str(len(MESSAGES))]
        said = subprocess.run(command, cwd=BUILD, check=True, capture_output=True, text=True)
        comparison.baseline.append(float(said.stdout))
        comparison.ours.append(rate(ours))
    return comparison


async def _stream(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        stream = await js.get_or_create_stream({"name": "SMALL", "subjects": ["small.>"], "allow_batched": True})
        await stream.purge()
        for name in ("javascript", "ours"):
            if name in [each async for each in stream.consumer_names()]:
                await stream.delete_consumer(name)
            await stream.create_consumer({"durable_name": name, "ack_policy": "none"})


async def _consumed(settings: ConnectionSettings) -> int:
    read = 0
    async with connect(settings) as js, js.consumer("SMALL", "ours").messages() as messages:
        async for _ in messages:
            read += 1
            if read == len(MESSAGES):
                break
    return read


sys.exit(main())
