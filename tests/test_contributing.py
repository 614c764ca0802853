"""What contributors use: the hooks before a commit, the templates, and what is tried for a pull request."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.matrix import CELLS, DOCUMENT, PYTHONS, Result, with_table

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
HOOKS = [
    hook for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"] for hook in repo["hooks"]
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the hooks and the settings of this one, and one well formatted file."""
    for name in (".pre-commit-config.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(BIN.parent)
    (tmp_path / "file.py").write_text('"""A module."""\n')
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "file.py", ".pre-commit-config.yaml")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def git(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of git, as somebody without a configuration, and with a home for pre-commit in the folder."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PRE_COMMIT_HOME": str(folder / ".cache"),
        **{f"GIT_{who}_{what}": "a@b.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    return subprocess.run(["git", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_commit_is_refused_until_its_files_are_as_make_test_wants_them(repository: Path) -> None:
    installed = subprocess.run(
        [BIN / "pre-commit", "install"], cwd=repository, capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (repository / "file.py").write_text("import os\nx  =  'a'\n")
    refused = git(repository, "commit", "--all", "--message", "second")
    assert refused.returncode != 0
    assert re.search(r"ruff check\.+Failed", refused.stderr + refused.stdout)
    assert (repository / "file.py").read_text() == 'x = "a"\n'  # the hooks have fixed it
    assert git(repository, "commit", "--all", "--message", "second").returncode == 0
    assert git(repository, "log", "--format=%s").stdout == "second\nfirst\n"


def test_hooks_use_the_locked_programs() -> None:
    programs = [Path(str(hook["entry"]).partition(" ")[0]) for hook in HOOKS]
    assert {str(program.parent) for program in programs} == {".venv/bin"}
    assert [program for program in programs if not (BIN / program.name).exists()] == []
    assert {hook["language"] for hook in HOOKS} == {"system"}


def test_a_pull_request_tries_the_oldest_and_the_newest_versions() -> None:
    workflow: Any = yaml.safe_load((ROOT / ".github" / "workflows" / "matrix.yml").read_text())
    assert "pull_request" in workflow[True]  # YAML 1.1 reads the key `on` as true
    few, all_cells = (
        json.loads(each) for each in re.findall(r"'(\[.*?\])'", workflow["jobs"]["cell"]["strategy"]["matrix"]["cell"])
    )
    assert few == [f"{PYTHONS[0]}-lowest", f"{PYTHONS[-1]}-newest", "airflow-3.1"]
    assert all_cells == [cell.name for cell in CELLS]


def test_the_table_of_versions_is_that_of_a_full_run_on_one_commit() -> None:
    text = DOCUMENT.read_text()
    passed = [Result(cell.name, "abc1234", True, 7, "dagster 1.2 · 3 passed") for cell in CELLS]
    written = with_table(text, passed, "2030-01-02")
    assert "Commit `abc1234`, 2030-01-02:" in written
    assert [line for line in written.splitlines() if line.endswith("| dagster 1.2 · 3 passed |")] == [
        f"| {cell.name} | passed in 7 s | dagster 1.2 · 3 passed |" for cell in CELLS
    ]
    assert with_table(written, passed, "2030-01-02") == written
    outside = re.compile("<!-- matrix -->.*<!-- end of matrix -->", re.DOTALL)
    assert outside.sub("", written) == outside.sub("", text) != text
    first, *others = passed
    for wanting in (
        others,
        [*others, first._replace(passed=False)],
        [*others, first._replace(commit="def5678")],
        [each._replace(commit="abc1234-dirty") for each in passed],
    ):
        with pytest.raises(ValueError, match="not passed: "):
            with_table(text, wanting, "2030-01-02")


def test_the_site_is_built_for_a_pull_request_and_published_with_a_release() -> None:
    """It contains the reference, which is not committed."""
    ci, release = (
        yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text()) for name in ("ci", "release")
    )
    for workflow in (ci, release):
        assert {"run": "make docs"} in workflow["jobs"]["site"]["steps"]
    uploaded = release["jobs"]["site"]["steps"][-1]["with"]
    assert (uploaded["name"], uploaded["path"]) == ("github-pages", "artifact.tar")
    assert set(release["jobs"]["pages"]["needs"]) == {"publish", "site"}


def test_templates_name_targets_and_files_that_exist() -> None:
    templates = [*(ROOT / ".github").glob("*.md"), *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    text = "\n".join(template.read_text() for template in templates)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z]+)", text)) <= set(targets)
    assert [file for file in re.findall(r"\b(?:docs/)?[\w-]+\.md\b", text) if not (ROOT / file).exists()] == []
    forms = [yaml.safe_load(each.read_text()) for each in templates if each.suffix == ".yml"]
    fields = [field for form in forms for field in form.get("body", ()) if field["type"] != "markdown"]
    assert len(fields) > 5
    assert len({field["id"] for field in fields}) == len(fields)
