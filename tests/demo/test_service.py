"""When a service is stopped, all processes that it started end, in any session, and no others."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from demo.service import MARK, Service, ServiceFailed, alive, end, marked, until

Ending = Callable[[Service], None]

# A child in the session, an orphan in it, and an orphan in a separate session. Each writes its pid to a file.
FAMILY = """
sleep 60 & echo $! > child
sh -c 'sleep 60 & echo $! > orphan'
setsid sh -c 'sleep 60 & echo $! > stray'
touch all
wait
"""


@pytest.fixture
def bystander() -> Iterator[psutil.Process]:
    process = subprocess.Popen(["sleep", "60"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Service]:
    service = Service("family", ["sh", "-c", FAMILY], folder=tmp_path, environment={**os.environ, MARK: tmp_path.name})
    service.start()
    until("the family", (tmp_path / "all").exists, 10)
    yield service
    service.kill()
    end(marked(tmp_path.name), patience=0)


def member(service: Service, name: str) -> psutil.Process:
    return psutil.Process(int((service.folder / name).read_text()))


@pytest.mark.parametrize("ending", [Service.kill, Service.stop])
def test_children_and_orphans_end_with_it(family: Service, bystander: psutil.Process, ending: Ending) -> None:
    relatives = [member(family, name) for name in ("child", "orphan")]
    ending(family)
    assert not family.running
    assert not any(alive(process) for process in relatives)
    assert alive(bystander)


def test_the_mark_finds_who_left_the_session(family: Service, bystander: psutil.Process, tmp_path: Path) -> None:
    stray = member(family, "stray")
    family.kill()
    assert alive(stray)
    assert marked(tmp_path.name) == [stray]
    end(marked(tmp_path.name), patience=1)
    assert not alive(stray)
    assert alive(bystander)


def test_a_service_that_ends_says_why(tmp_path: Path) -> None:
    class Never(Service):
        def ready(self) -> bool:
            return False

    service = Never("broken", [sys.executable, "-c", "raise SystemExit('no port left')"], folder=tmp_path)
    with pytest.raises(ServiceFailed, match="broken ended:\nno port left"):
        service.start()
