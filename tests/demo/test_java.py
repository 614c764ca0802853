"""A Java for Spark on a machine without Java, or with one that is too old."""

import subprocess
from pathlib import Path

import pytest

from demo.java import java_home


def test_the_wheel_serves_where_no_java_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java_home(tmp_path / "java")
    assert home == tmp_path / "java"
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    monkeypatch.undo()
    assert "openjdk" in subprocess.run(asked, capture_output=True, text=True, check=True).stderr


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\nprintf '    java.home = /old/jre\\n    java.specification.version = 1.8\\n' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", "/bin")
    assert java_home(tmp_path / "java") != Path("/old/jre")
