# SPDX-License-Identifier: Apache-2.0
"""A service: one child process in a separate session. It has a log, and can be killed and started again."""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil


class ServiceFailed(RuntimeError):
    """A service ended or did not become ready. The message contains the end of its log."""


class Service:
    """A child process that can be started, killed and stopped together with its own children."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        """Prepare a service without starting it.

        folder:       its working folder, which also contains its log.
        environment:  its complete environment; default: that of this process.
        user:         the user as whom it runs; default: that of this process.
        """
        self.name = name
        self.command = list(command)
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._environment = environment
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self.sessions: dict[int, float] = {}
        """All sessions that it has had: the pid of each leader, and the time at which the leader was started, in
        seconds since 1970."""

    @property
    def pid(self) -> int:
        """The pid of the process, which is also the leader of its session."""
        if self._process is None:
            raise ServiceFailed(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return when it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process and return at once. Its folder, with log and data, is closed to other users."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
            )
        self.sessions[self._process.pid] = psutil.Process(self._process.pid).create_time()

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait until the service is ready. Raises ServiceFailed if it ends before that, or is not ready
        after ``seconds`` seconds."""
        deadline = time.monotonic() + seconds
        while not self.ready():
            if not self.running:
                raise ServiceFailed(f"{self.name} ended:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{self.name} was not ready after {seconds:.0f} s:\n{self.tail()}")
            time.sleep(0.02)

    def ready(self) -> bool:
        """Whether the service answers. A process without a port is ready when it runs."""
        return self.running

    def kill(self) -> None:
        """Send SIGKILL to the process and its children."""
        if self._process is not None:
            end(session(self._process.pid), patience=0)
            self._process.wait()

    def stop(self, patience: float = 5) -> None:
        """Send SIGTERM to the process and its children, and SIGKILL to those left after ``patience`` seconds."""
        if self._process is not None:
            end(session(self._process.pid), patience)
            self._process.wait()

    def freeze(self) -> None:
        """Stop the process until it is thawed: it does nothing, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # on a busy machine its threads go on for a moment

    def thaw(self) -> None:
        """Let the process continue, also if it was not frozen."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the process if it still runs, and start it again in the same folder."""
        self.kill()
        self.start()

    def tail(self, lines: int = 40) -> str:
        """Return the end of its log, at most so many ``lines``."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def session(leader: int) -> list[psutil.Process]:
    """Return the running processes of a session, orphans included, and their descendants in other sessions."""
    members: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                members.update({each.pid: each for each in (process, *process.children(recursive=True))})
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return [process for process in members.values() if alive(process)]


def alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie does not: it has ended, and its parent has not asked for its exit status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(processes: Iterable[psutil.Process], patience: float) -> None:
    """Send SIGTERM, then SIGKILL to processes that still run after `patience` seconds. With 0, send SIGKILL at once."""
    left = list(processes)
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5)):
        if number == signal.SIGTERM and not patience:
            continue
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            left = [process for process in left if alive(process)]
            time.sleep(0.02)


_RESERVED = set[int]()
"""The ports that this process has chosen."""


@cache
def _reservations() -> int:
    """Open the file of this user in which each process locks the bytes of its ports until it ends."""
    return os.open(Path(tempfile.gettempdir()) / f"jetstream-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not in use. Until this process ends, no other call returns it, in any process.

    It is one that no system chooses for a new connection (Linux chooses 32768 and above): a connection could otherwise
    get it before the service listens on it.
    """
    while True:
        port = 10_000 + secrets.randbelow(22_000)
        if port in _RESERVED:
            continue
        with suppress(OSError), socket.socket() as listener:
            fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            listener.bind(("127.0.0.1", port))
            _RESERVED.add(port)
            return port
