# SPDX-License-Identifier: Apache-2.0
"""Submit, watch and kill a job through the REST server of a Spark standalone master.

The REST server (``spark.master.rest.enabled``, which Spark 4.3 enables by default) does not accept Python programs, but
it accepts ``SparkSubmit`` itself as the class to run. The driver that it starts on a worker then submits the program in
client mode.
https://spark.apache.org/docs/latest/spark-standalone.html#rest-api
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import quote, urlsplit

from airflow_nats_jetstream.errors import SparkMasterRefused, SparkMasterUnavailable
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import ENVIRONMENT_PREFIX, shown_address

if TYPE_CHECKING:
    import httpx
    from airflow.sdk import Connection

log = logging.getLogger(__name__)

ENDED = ("FINISHED", "KILLED", "FAILED", "ERROR")
GOING = ("SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN")
"""The states of a driver that has not ended (``DriverState`` in Spark). ``UNKNOWN`` means that its master is
recovering."""
FINISHED = "FINISHED"
LOST = "LOST"
"""The state of a driver that the master does not know: the master was restarted without ``spark.deploy.recoveryMode``,
or more than ``spark.deploy.retainedDrivers`` drivers have ended since."""

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_LONGEST_ARGUMENT = 128 * 1024 - 1  # Linux, MAX_ARG_STRLEN
_WHO = "if this is not the address of a Spark master, correct it in the Spark connection"
_CLOCKS = 60.0  # seconds by which the clocks of master and Airflow may differ
_ANSWER = 30.0  # seconds for one complete answer, including the attempts to reach the other masters
_CONNECTED = 5.0  # seconds for one master to accept a connection
_LARGEST_ANSWER = 1 << 20
_HOST = re.compile(r"([\w.-]+)(?::([0-9]{1,5}))?/?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]*")  # checked here, because the error of httpx for an invalid header shows its value
_DRIVER = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True)
class Submission:
    """A Python program for the cluster. The field names are the same as in Airflow's ``SparkSubmitOperator``.

    application:       the program: an absolute path, or an address, at which every worker finds it.
    application_args:  the program's arguments. Default: none.
    conf:              Spark properties, including the memory and the cores of the driver. Default: none.
    env_vars:          environment variables of the driver, in addition to those of its worker. Default: none.
    py_files:          additional Python files, separated by commas. Default None.

    Raises:
        InvalidValue: a value that would fail on the cluster, or a secret that the master would show.
    """

    application: str
    application_args: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    py_files: str | None = None

    def __post_init__(self) -> None:
        if not self.application.endswith(".py") or not (self.application.startswith("/") or ":" in self.application):
            remedy = "give the absolute path or the address of a Python program (.py) that every Spark worker can read"
            raise InvalidValue("application", "…@…" if "@" in self.application else self.application, remedy)
        for argument in self.application_args:
            if len(argument.encode()) > _LONGEST_ARGUMENT:
                remedy = (
                    f"an argument must not be longer than {_LONGEST_ARGUMENT} bytes; if it is the claim, lower the "
                    "sensor's messages_per_claim"
                )
                raise InvalidValue("application_args", f"an argument of {len(argument.encode())} bytes", remedy)
        for name, values in (("conf", self.conf), ("env_vars", self.env_vars)):
            for key, value in values.items():
                if ENVIRONMENT_PREFIX in key and not value.startswith("/"):
                    remedy = (
                        f"the Spark master would show the value of {key}; give the absolute path of a file on every "
                        "worker instead"
                    )
                    raise InvalidValue(name, "…", remedy)
        if self.conf.get("spark.driver.supervise", "false").lower() != "false":
            remedy = (
                "leave it out, because a restarted driver would write its output to the same place as the first one"
            )
            raise InvalidValue("conf", "spark.driver.supervise", remedy)

    def request(self, master: str, name: str) -> dict[str, Any]:
        """Return the body of a ``CreateSubmissionRequest``. Its ``appResource`` is empty, so that nothing is fetched.

        master:  the URL of the masters.
        name:    the name of the application.
        """
        options = ["--master", master, "--name", name, *(["--py-files", self.py_files] if self.py_files else [])]
        return {
            "action": "CreateSubmissionRequest",
            "clientSparkVersion": "",
            "appResource": "",
            "mainClass": _SUBMIT,
            "appArgs": [*options, self.application, *self.application_args],
            "sparkProperties": {**self.conf, "spark.app.name": name, "spark.driver.supervise": "false"},
            "environmentVariables": dict(self.env_vars),
        }


@dataclass(frozen=True)
class SparkMaster:
    """The masters of a cluster. The active one answers.

    url:    the URL of the masters, as for ``spark-submit --master``: ``spark://a:7077,b:7077``.
    rest:   the addresses of their REST servers.
    webui:  the address of the master's web pages. Default: empty, which means unknown.
    token:  the token for a REST server with ``org.apache.spark.ui.JWSFilter``. Default: empty.
    """

    url: str
    rest: tuple[str, ...]
    webui: str = ""
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, connection: Connection) -> SparkMaster:
        """Return the masters that an Airflow connection names.

        The fields are the same as in Airflow's Spark provider: ``host`` (with or without ``spark://``), ``port``, and
        the fields ``rest-port`` and ``rest-scheme`` of ``extra``. In addition, ``extra`` may have ``webui``, and the
        password is the token.

        connection:  the Airflow connection.

        Raises:
            InvalidValue: ``host`` names no standalone master, or another field is invalid. The error shows no secret.
        """
        host, extra, token = connection.host or "", connection.extra_dejson, connection.password or ""
        masters = [_HOST.fullmatch(each.strip()) for each in host.removeprefix("spark://").split(",")]
        names = [(each[1], each[2] or connection.port or 7077) for each in masters if each]
        if len(names) < len(masters) or not all(0 < int(port) < 1 << 16 for _, port in names):
            remedy = (
                f"the connection {connection.conn_id!r} must name a standalone master with a valid port, for example "
                "spark://spark-master:7077"
            )
            raise InvalidValue("host", shown_address(host), remedy)
        scheme, port = str(extra.get("rest-scheme") or "http"), str(extra.get("rest-port") or 6066)
        if scheme not in ("http", "https"):
            raise InvalidValue("extra['rest-scheme']", "…", "give http or https")
        if not _PORT.fullmatch(port):
            raise InvalidValue("extra['rest-port']", "…", "give the port of the master's REST server, usually 6066")
        webui = str(extra.get("webui") or "").rstrip("/")
        if webui and not _is_page(webui):
            remedy = "give an address such as http://spark-master:8080, without user and password"
            raise InvalidValue("extra['webui']", "…", remedy)
        if not _TOKEN.fullmatch(token):
            remedy = "it is sent as a bearer token; give printable ASCII characters without spaces, or leave it empty"
            raise InvalidValue("password", "…", remedy)
        addresses = tuple(f"{scheme}://{name}:{port}/v1/submissions" for name, _ in names)
        return cls("spark://" + ",".join(f"{name}:{port}" for name, port in names), addresses, webui, token)

    async def submit(self, submission: Submission, name: str) -> str:
        """Submit a program, and return the id of the driver that will run it.

        submission:  the program.
        name:        the name of the application.

        Raises:
            SparkMasterUnavailable: there was no valid answer. The program may have been submitted nevertheless.
            SparkMasterRefused: the program was not submitted.
        """
        answer = await self._request("POST", "create", submission.request(self.url, name))
        if answer.get("success") is not True:
            raise SparkMasterRefused(
                f"the Spark master refused the job: {_first_line(answer.get('message')) or 'it gave no reason'}"
            )
        driver = answer.get("submissionId")
        if not _is_driver(driver):
            raise SparkMasterUnavailable("the Spark master accepted the job, but its answer has no valid submissionId")
        return driver

    async def state(self, driver: str) -> str:
        """Return a driver's state: one of ``GOING``, ``FINISHED``, ``FAILED``, ``KILLED``, ``ERROR`` or ``LOST``.

        driver:  the id of the driver.
        """
        answer = await self._request("GET", f"status/{quote(driver, safe='')}")
        state = answer.get("driverState")
        if state is None:
            return LOST
        if state not in (*GOING, *ENDED):
            raise SparkMasterUnavailable(f"the Spark master answered with an unknown driverState for driver {driver}")
        return str(state)

    async def kill(self, driver: str) -> bool:
        """Kill a driver. Returns False if the driver had already ended.

        driver:  the id of the driver.
        """
        answer = await self._request("POST", f"kill/{quote(driver, safe='')}")
        return answer.get("success") is True

    async def ended(self, driver: str, every: float) -> str:
        """Wait until a driver has ended, and return the state in which it ended. Keep waiting while no master answers.

        driver:  the id of the driver.
        every:   the seconds between two requests.

        Raises:
            SparkMasterRefused: the master refused a request.
        """
        lost = False
        while True:
            try:
                state = await self.state(driver)
            except SparkMasterUnavailable as away:
                log.warning("the state of Spark driver %s is unknown and will be requested again: %s", driver, away)
            else:
                if state not in (*GOING, LOST) or (state == LOST and lost):
                    return state
                lost = state == LOST  # ask again, because a master that has just taken over may not know the driver yet
            await asyncio.sleep(every)

    async def find(self, name: str, since: float) -> str | None:
        """Return the driver of a job, or None if it cannot be determined. This is for a job whose Airflow worker died
        before it received the driver's id.

        The master's page lists drivers, and separately the names of the running applications, but does not say which
        driver belongs to which application. So the driver is returned only if an application of this name is running
        and exactly one running driver was submitted after the time ``since``.

        name:   the name of the application.
        since:  when the job was submitted, in seconds since 1970.

        Raises:
            SparkMasterUnavailable: the master's page cannot be read.
        """
        import httpx

        if not self.webui:
            return None
        address = f"{self.webui}/json/"
        try:
            async with asyncio.timeout(_ANSWER), _client() as client:
                status, page = await _answer(client, "GET", address)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable(address, error) from None
        if status != 200:
            problem = "set the connection's 'webui' to the address of the Spark master's web pages"
            raise SparkMasterUnavailable(f"{address} answered with status {status}; {problem}")
        recent = [
            each["id"]
            for each in _objects(page, "activedrivers")
            if each.get("mainclass") == _SUBMIT
            and _is_driver(each.get("id"))
            and _milliseconds(each.get("starttime")) / 1e3 >= since - _CLOCKS
        ]
        running = any(each.get("name") == name for each in _objects(page, "activeapps"))
        return recent[0] if running and len(recent) == 1 else None

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of the active master. If a master may have accepted the request, the request is sent to
        no other master."""
        import httpx

        address, problem = "", "the connection names no master"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with asyncio.timeout(_ANSWER), _client(**headers) as client:
                for address in self.rest:
                    try:
                        status, answer = await _answer(client, method, f"{address}/{path}", body)
                    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                        problem = f"{address} could not be reached ({type(error).__name__} {_first_line(str(error))})"
                        continue
                    if (standby := _standby(address, status, answer)) is None:
                        return answer
                    problem = standby
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable(address, error) from None
        raise SparkMasterUnavailable(f"no active Spark master answered: {problem}")


def _client(**headers: str) -> httpx.AsyncClient:
    """Return a client for an untrusted server. It requests no compression; httpx follows no redirects by default."""
    import httpx

    timeout = httpx.Timeout(_ANSWER, connect=min(_ANSWER, _CONNECTED))
    return httpx.AsyncClient(timeout=timeout, headers={"Accept-Encoding": "identity", **headers})


async def _answer(
    client: httpx.AsyncClient, method: str, address: str, body: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of an answer; an empty object if the body is something else.

    Raises:
        SparkMasterUnavailable: the answer is compressed or too large.
    """
    data = bytearray()
    async with client.stream(method, address, json=body) as response:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            problem = "sent a compressed answer, although no compression was requested"
            raise SparkMasterUnavailable(f"{address} {problem}; {_WHO}")
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > _LARGEST_ANSWER:
                problem = f"answered with more than {_LARGEST_ANSWER:,} bytes"
                raise SparkMasterUnavailable(f"{address} {problem}; {_WHO}")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    return response.status_code, answer if isinstance(answer, dict) else {}


def _standby(address: str, status: int, answer: Mapping[str, Any]) -> str | None:
    """Return the reason for asking another master, or None if the master at ``address`` is the active one. Raises
    SparkMasterRefused."""
    message = _first_line(answer.get("message"))
    if status in {401, 403}:
        remedy = (
            "set the connection's password to the token that the filter in the master's spark.master.rest.filters "
            "requires"
        )
        raise SparkMasterRefused(f"{address} answered with status {status}; {remedy}")
    if not 200 <= status < 300:
        raise SparkMasterRefused(f"{address} answered with status {status}{f': {message}' if message else f'; {_WHO}'}")
    if not isinstance(answer.get("success"), bool):
        raise SparkMasterUnavailable(f"{address} sent an answer without the field 'success'; {_WHO}")
    if "Current state is not alive" in str(answer.get("message")):  # Master.scala, on standby or during recovery
        return f"{address} is not active ({message})"
    return None


def _unavailable(address: str, error: Exception) -> SparkMasterUnavailable:
    if isinstance(error, TimeoutError):
        return SparkMasterUnavailable(f"{address} sent no complete answer within {_ANSWER:g} s")
    return SparkMasterUnavailable(f"the request to {address} failed: {type(error).__name__} {_first_line(str(error))}")


def _is_driver(value: object) -> TypeGuard[str]:
    """Return whether a value can be a driver's id, which becomes part of addresses, logs and pages."""
    return isinstance(value, str) and _DRIVER.fullmatch(value) is not None


def _is_page(address: str) -> bool:
    try:
        return urlsplit(address).scheme in ("http", "https") and "@" not in address
    except ValueError:
        return False


def _milliseconds(value: object) -> int:
    """Return a time from the master's page, where times are strings; 0 for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _objects(page: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in a list of the master's page."""
    values = page.get(name)
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _first_line(text: object) -> str:
    """Return the first line of a server's message, shortened and without control characters."""
    line = text.strip().partition("\n")[0][:400] if isinstance(text, str) else ""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
