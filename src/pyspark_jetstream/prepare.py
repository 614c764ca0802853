# SPDX-License-Identifier: Apache-2.0
"""Preparing a Spark home with which Spark starts faster: ``python -m pyspark_jetstream.prepare FOLDER``.

Every process of Spark finds its programs in the home that ``SPARK_HOME`` names. The prepared home has links to the
programs of the installed pyspark, and two things that pyspark lacks:

* The modules in its ``pyspark.zip`` are compiled. Every Python worker imports from this file, and would otherwise
  compile the modules that it needs.
* An archive of Java classes that are already loaded and verified (AppCDS). Java ignores it if the version of Java or a
  file of Spark has changed.

Nothing that is installed is changed. Prepare the home again after an update of pyspark, Python or Java.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

import pyspark

ARCHIVE = "classes.jsa"

# This job loads the classes that most jobs need: for JSON, an aggregation and Parquet. Java writes them to the archive
# when it exits.
_JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
rows = spark.range(1_000).selectExpr("id", "to_json(struct(id)) as data")
parsed = rows.select(from_json(col("data"), "id BIGINT").alias("row")).select("row.*")
parsed.write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).groupBy("id").count().collect()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


def prepare(folder: Path) -> Path:
    """Prepare a home in a new or empty folder. Returns the path of the archive of classes.

    Raises:
        OSError: the folder cannot be written, or is not empty.
        RuntimeError: Spark does not run, or Java cannot write the archive. The error contains the reason.
    """
    link(folder)
    archive = folder.absolute() / ARCHIVE
    _archive_classes(folder.absolute(), archive)
    return archive


def link(folder: Path) -> None:
    """Prepare a home in a new or empty folder, without the archive of classes. Takes 2 s instead of 20 s.

    Raises:
        OSError: the folder cannot be written, or is not empty.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give a new folder, or empty this one first")
    installed = Path(pyspark.__path__[0])
    for name in ("bin", "jars"):
        (folder / name).symlink_to(installed / name)
    libraries = folder / "python" / "lib"
    libraries.mkdir(parents=True)
    for library in (installed / "python" / "lib").glob("*.zip"):
        compiled(library, libraries / library.name)


def compiled(library: Path, target: Path) -> None:
    """Copy a zip of modules, and add each compiled module next to its source. Other versions of Python ignore the
    compiled modules."""
    with tempfile.TemporaryDirectory() as unpacked:
        shutil.unpack_archive(library, unpacked)
        mode = PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(unpacked, quiet=2, legacy=True, invalidation_mode=mode, rx=re.compile(r"/tests/"))
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(unpacked).rglob("*")):
                archive.write(path, path.relative_to(unpacked))


def _archive_classes(home: Path, archive: Path) -> None:
    """Run a job; Java writes the archive when it exits. The job runs without the environment variables of Spark,
    because the path of a configuration folder would become part of the archive."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment = {
        **plain,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}",
        "PYSPARK_PYTHON": sys.executable,
    }
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", _JOB, str(Path(out) / "rows")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not archive.exists():
        raise RuntimeError(
            "Spark did not run, or Java wrote no archive of classes; Java 17 or newer is needed:\n"
            f"{done.stdout}{done.stderr}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_jetstream.prepare",
        description="Prepare a folder for SPARK_HOME with which Spark starts faster.",
    )
    parser.add_argument("folder", type=Path, help="a new folder, for example /opt/spark")
    folder = parser.parse_args().folder.absolute()
    archive = prepare(folder)
    sys.stdout.write(f"export SPARK_HOME={folder}\nexport SPARK_SUBMIT_OPTS=-XX:SharedArchiveFile={archive}\n")


if __name__ == "__main__":
    main()
