"""The picture of an asset in Dagster's UI, of the last `make dagster`: `make dagsterpicture`.

The UI is in a separate environment, `build/dagster`. Only the definitions and the instance are needed, no service.
"""

import os
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from PIL import Image

from demo.service import Service, free_port

ROOT = Path(__file__).parents[2]
INSTANCE = ROOT / "build" / "dagster-demo" / "dagster"
PICTURE = ROOT / "docs" / "images" / "dagster_asset.png"


class Webserver(Service):
    """dagster-webserver with the definitions of the demo."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        program, definitions = ROOT / "build" / "dagster" / "bin" / "dagster-webserver", "demo/dagster_flights.py"
        command = [program, "--host", "127.0.0.1", "--port", port, "--python-file", ROOT / definitions]
        environment = {**os.environ, "DAGSTER_HOME": str(INSTANCE)}
        super().__init__("webserver", [str(each) for each in command], folder=folder, environment=environment)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def main() -> None:
    if not INSTANCE.is_dir():
        raise SystemExit(f"{INSTANCE} does not exist; run `make dagster` first")
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium")) or "chromium"
    with tempfile.TemporaryDirectory() as folder:
        webserver = Webserver(Path(folder))
        try:
            webserver.start()
            options = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,895"]
            options += [f"--user-data-dir={folder}/chromium", "--virtual-time-budget=20000", f"--screenshot={PICTURE}"]
            subprocess.run(
                [chromium, "--headless", *options, f"{webserver.url}/assets/delays"], check=True, timeout=120
            )
            with Image.open(PICTURE) as taken:
                small = taken.convert("RGB").quantize(64)  # a third of the size
            small.save(PICTURE, optimize=True)
        finally:
            webserver.stop()


if __name__ == "__main__":
    main()
