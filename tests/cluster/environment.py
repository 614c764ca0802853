"""Python environments as executors have them: pyspark, pyarrow, and this project's wheel or not even that."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = "airflow-provider-nats-jetstream"
WITHOUT = (
    "anyio",
    "cffi",
    "cryptography",
    "idna",
    "packaging",
    "pendulum",
    "pycparser",
    "python-dateutil",
    "typing-extensions",
    "tzdata",
)
"""What the package needs, and reading into Spark does not."""


def environment(folder: Path, *, installed: bool) -> Path:
    """The Python of an environment in `folder`, made from the lock by uv, which links what `make` has in its cache."""
    what = ["--reinstall-package", PACKAGE] if installed else ["--no-install-project"]
    left_out = [word for name in WITHOUT for word in ("--no-install-package", name)]
    command = ["sync", "--locked", "--no-dev", "--no-editable", "--extra", "spark", *what, *left_out]
    _uv(*command, environment={"UV_PROJECT_ENVIRONMENT": str(folder), "UV_PYTHON": sys.executable})
    return folder / "bin" / "python"


def spark_home(python: Path) -> Path:
    """Where pyspark lies in an environment: it brings all of Spark with it."""
    (home,) = (python.parent.parent / "lib").glob("python*/site-packages/pyspark")
    return home


def zipped(folder: Path) -> Path:
    """The wheel as `--py-files` takes it: it is a zip archive, and Spark goes by the name."""
    _uv("build", "--wheel", "--out-dir", str(folder))
    (wheel,) = folder.glob("*.whl")
    assert zipfile.is_zipfile(wheel)
    return wheel.rename(folder / "jetstream.zip")


def _uv(*command: str, environment: dict[str, str] | None = None) -> None:
    program = str(Path(sysconfig.get_path("scripts")) / "uv")
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    run = subprocess.run(
        [program, *command],
        cwd=PROJECT,
        env=inherited | (environment or {}),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
