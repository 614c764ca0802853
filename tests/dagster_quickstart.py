"""docs/dagster-quickstart.md, verbatim: its blocks one after the other in one shell, in a copy of what git knows.

`make dagsterquickstart`; most of its processor time is pip's and Dagster's.
"""

import re
from pathlib import Path

import pytest

from tests.quickstart import followed, progress

SECONDS = 1_800


@pytest.mark.timeout(SECONDS + 60)
async def test_the_quickstart_for_dagster_runs_verbatim(tmp_path: Path) -> None:
    async with followed("dagster-quickstart.md", tmp_path, 3000, until=SECONDS) as (js, run, _):
        assert (await js.stream("ORDERS").info()).state["messages"] == 2_000
        assert await progress(js, "ORDERS", "revenue") == (2_000, 0, 0)
        log = run.log.read_text()
        assert "There are no open claims" in log
        attempts = re.findall(r"^[0-9a-f]{12}-\d+-[0-9a-f]{8} (\d+)-(\d+)$", log, re.MULTILINE)
        assert attempts == [("1", "500"), ("501", "1000"), ("1001", "1500"), ("1501", "2000")]
