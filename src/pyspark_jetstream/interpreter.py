# SPDX-License-Identifier: Apache-2.0
"""Check the Python interpreter that Spark starts for its workers: whether it has the driver's version, and whether it
can read claims.

PySpark starts the interpreter that ``PYSPARK_PYTHON`` names, or else the ``python3`` that it finds on PATH. This does
not depend on the driver's own interpreter. To find data sources, PySpark starts an interpreter on the driver:
``PYSPARK_DRIVER_PYTHON`` if that is set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from jetstream_handoff.watch.findings import fine, not_checked, to_do

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_handoff.watch.findings import Finding

PATIENCE = 30.0
"""Seconds within which an interpreter must have started and imported pyspark."""
_PACKAGES = ("pyspark", "pyarrow", "pyspark_jetstream")
_PROBE = """
import json, sys
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in sys.argv[1:]:
    try:
        found[name] = getattr(__import__(name), "__version__", "")
    except Exception:
        found[name] = None
print(json.dumps(found))
"""


def check() -> Iterator[Finding]:
    """Start the interpreters that Spark would start on this machine, and compare them with this one."""
    try:
        import pyspark
    except ImportError:
        yield not_checked("pyspark", "it is not installed here; only tasks that use Spark need it")
        return
    from pyspark_jetstream.compat import mixed, only_a_client

    if wrong := mixed():
        yield to_do("pyspark", wrong)
    if only_a_client():
        text = "only Spark's client is installed here; the Spark Connect server starts the workers, on its machines"
        yield not_checked("pyspark-client", text)
        return
    worker = os.environ.get("PYSPARK_PYTHON") or "python3"
    driver = os.environ.get("PYSPARK_DRIVER_PYTHON") or worker
    for program in dict.fromkeys((worker, driver)):
        name = "PYSPARK_PYTHON" if program == worker else "PYSPARK_DRIVER_PYTHON"
        yield _checked(program, f"set {name}={sys.executable} where tasks run", pyspark.__version__)


def _checked(program: str, remedy: str, pyspark_version: str) -> Finding:
    path = shutil.which(program)
    if path is None:
        return to_do(program, f"no such program was found, but Spark would start it; {remedy}")
    what = program if path == program else f"{program} ({path})"
    try:
        found = _probe(path)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return to_do(what, f"it did not start as a Python interpreter within {PATIENCE:g} s; {remedy}")
    ours = "{}.{}".format(*sys.version_info[:2])
    if found["python"] != ours:
        return to_do(what, f"it is Python {found['python']}, which Spark refuses if the driver has {ours}; {remedy}")
    if missing := [name for name in _PACKAGES if found[name] is None]:
        return to_do(what, f"it cannot import {', '.join(missing)}; install the missing packages there, or {remedy}")
    if found["pyspark"] != pyspark_version:
        return to_do(what, f"it has pyspark {found['pyspark']}, but the driver here has {pyspark_version}; {remedy}")
    return fine(what, f"Python {ours}, pyspark {found['pyspark']}, pyarrow {found['pyarrow']}")


def _probe(path: str) -> dict[str, str | None]:
    """Return the version of an interpreter, and of each package that it can import."""
    command = [path, "-c", _PROBE, *_PACKAGES]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    found: dict[str, str | None] = json.loads(printed.splitlines()[-1])
    return found
