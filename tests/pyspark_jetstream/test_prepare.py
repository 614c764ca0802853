"""A prepared home of Spark. `python -m benchmarks.cold` runs a job with one."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_jetstream.prepare import compiled, prepare


def imported(library: Path) -> str:
    """Import a module of a zip. Returns the file that Python took it from."""
    command = [sys.executable, "-c", "import package.module"]
    done = subprocess.run(command, env={"PYTHONPATH": str(library)}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_modules_are_imported_compiled_and_by_another_version_of_python_from_their_source(tmp_path: Path) -> None:
    source, target, foreign = (tmp_path / f"{name}.zip" for name in ("source", "target", "foreign"))
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("package/__init__.py", "")
        archive.writestr("package/module.py", "print(__file__)")
        archive.writestr("package/tests/test_module.py", "")
    compiled(source, target)
    assert imported(target) == f"{target}/package/module.pyc"
    with zipfile.ZipFile(target) as archive, zipfile.ZipFile(foreign, "w") as other:
        assert "package/tests/test_module.pyc" not in archive.namelist()
        for name in archive.namelist():
            data = archive.read(name)
            other.writestr(name, b"\0\0\0\0" + data[4:] if name.endswith(".pyc") else data)
    assert imported(foreign) == f"{foreign}/package/module.py"


def test_a_folder_that_contains_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        prepare(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
