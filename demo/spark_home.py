"""A home of Spark whose Python modules are compiled, for processes that start many Python workers."""

import fcntl
import shutil
import sys
from importlib.metadata import version
from pathlib import Path


def spark_home(folder: Path = Path("build/spark")) -> Path:
    """Return the home in this folder for the installed pyspark and this Python. The first process that asks makes it,
    in 2 s, while others wait. It has links to an environment, and is made again if that is gone."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / f"{version('pyspark')}-{sys.implementation.cache_tag}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "jars").is_dir():
            from pyspark_jetstream.prepare import link  # imports pyspark, which most processes do not need

            begun = folder / "begun"
            for old in (begun, home):
                shutil.rmtree(old, ignore_errors=True)
            link(begun)
            begun.rename(home)
    return home
