"""docker/airflow/airflow_local_settings.py: tasks find PySpark imported, and only where they are started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker" / "airflow" / "airflow_local_settings.py"
PAGE = ROOT / "docs" / "how-to" / "warm-spark.md"

# As Airflow starts: it puts $AIRFLOW_HOME/config on the path, imports the file, and forks for each task.
PROGRAM = """
import os
import sys

import airflow.settings

airflow.settings.initialize()
if os.fork() == 0:
    print("pyspark.sql.connect.session" in sys.modules, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    ("command", "imported"), [(["scheduler"], True), (["celery", "worker"], True), (["triggerer"], False)]
)
def test_a_task_finds_it_imported(tmp_path: Path, command: list[str], imported: bool) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE.name).write_bytes(FILE.read_bytes())
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines()[-1] == str(imported)


def test_the_page_shows_it() -> None:
    _, _, code = FILE.read_text().partition('"""\n\n')
    assert f"```python\n{code}```\n" in PAGE.read_text()
