"""Spark's standalone master, asked over HTTP: a job is submitted to run on the cluster, watched and killed.

The master's REST server (``spark.master.rest.enabled``, in Spark 4.3 on by default) takes no Python, but it takes
``SparkSubmit`` itself as the class to run: the driver that it starts on a worker submits the program in client mode.
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
"""The states of a driver that has not ended (``DriverState`` in Spark; ``UNKNOWN``: its master is recovering)."""
FINISHED = "FINISHED"
LOST = "LOST"
"""Of a driver that the master does not know: it was restarted without ``spark.deploy.recoveryMode``, or has ended so
many drivers since (``spark.deploy.retainedDrivers``) that it forgot this one."""

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_LONGEST_ARGUMENT = 128 * 1024 - 1  # Linux, MAX_ARG_STRLEN
_WHO = "is that the REST server of a Spark master?"
_CLOCKS = 60.0  # seconds by which the clocks of master and Airflow may differ
_ANSWER = 30.0  # seconds for one answer, all masters asked and the last byte read
_CONNECTED = 5.0  # seconds for one master to accept a connection
_LARGEST_ANSWER = 1 << 20
_HOST = re.compile(r"([\w.-]+)(?::([0-9]{1,5}))?/?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]*")  # httpx shows a header that it refuses
_DRIVER = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True)
class Submission:
    """A Python program for the cluster. Field names are those of Airflow's ``SparkSubmitOperator``.

    application:       its path or address, as every worker finds it.
    application_args:  what it gets.
    conf:              Spark's properties. The driver's memory and cores count, too.
    env_vars:          the driver's environment, in addition to its worker's.
    py_files:          further modules, with commas between.

    Raises:
        InvalidValue: what the master or its workers would stumble over, or show to everybody.
    """

    application: str
    application_args: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    py_files: str | None = None

    def __post_init__(self) -> None:
        if not self.application.endswith(".py") or not (self.application.startswith("/") or ":" in self.application):
            remedy = "give the absolute path, or the address, of a Python program that every worker finds there"
            raise InvalidValue("application", "…@…" if "@" in self.application else self.application, remedy)
        for argument in self.application_args:
            if len(argument.encode()) > _LONGEST_ARGUMENT:
                remedy = f"at most {_LONGEST_ARGUMENT} bytes: let the sensor take smaller claims (messages_per_claim)"
                raise InvalidValue("application_args", f"one of {len(argument.encode())} bytes", remedy)
        for name, values in (("conf", self.conf), ("env_vars", self.env_vars)):
            for key, value in values.items():
                if ENVIRONMENT_PREFIX in key and not value.startswith("/"):
                    remedy = f"the master would show it: give the path of a file that workers have in {key}"
                    raise InvalidValue(name, "…", remedy)
        if self.conf.get("spark.driver.supervise", "false").lower() != "false":
            remedy = "leave it out: a driver that Spark starts again would write to the place of the first one"
            raise InvalidValue("conf", "spark.driver.supervise", remedy)

    def request(self, master: str, name: str) -> dict[str, Any]:
        """The body of a ``CreateSubmissionRequest``. Of an empty ``appResource`` nothing is fetched."""
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
    """The masters of a cluster; whichever is in charge answers.

    url:    theirs, as ``spark-submit --master`` takes it: ``spark://a:7077,b:7077``.
    rest:   the addresses of their REST servers.
    webui:  the address of the master's pages; empty when it is not known.
    token:  shown to a REST server with ``org.apache.spark.ui.JWSFilter``.
    """

    url: str
    rest: tuple[str, ...]
    webui: str = ""
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, connection: Connection) -> SparkMaster:
        """As Airflow's Spark provider reads it: ``host`` (with or without ``spark://``) and ``port``, and in ``extra``
        ``rest-port`` and ``rest-scheme``. Here also ``webui`` there, and the password as the token.

        Raises:
            InvalidValue: not a standalone master, or another field that cannot be used. It shows no secret.
        """
        host, extra, token = connection.host or "", connection.extra_dejson, connection.password or ""
        masters = [_HOST.fullmatch(each.strip()) for each in host.removeprefix("spark://").split(",")]
        names = [(each[1], each[2] or connection.port or 7077) for each in masters if each]
        if len(names) < len(masters) or not all(0 < int(port) < 1 << 16 for _, port in names):
            remedy = f"the connection {connection.conn_id} must name a standalone master, e.g. spark://spark-master"
            raise InvalidValue("host", shown_address(host), remedy)
        scheme, port = str(extra.get("rest-scheme") or "http"), str(extra.get("rest-port") or 6066)
        if scheme not in ("http", "https"):
            raise InvalidValue("extra['rest-scheme']", "…", "give http or https")
        if not _PORT.fullmatch(port):
            raise InvalidValue("extra['rest-port']", "…", "give the port of the master's REST server, e.g. 6066")
        webui = str(extra.get("webui") or "").rstrip("/")
        if webui and not _is_page(webui):
            remedy = "give an address such as http://spark-master:8080, without a password"
            raise InvalidValue("extra['webui']", "…", remedy)
        if not _TOKEN.fullmatch(token):
            raise InvalidValue("password", "…", "it is sent as a bearer token: give letters without spaces, or nothing")
        addresses = tuple(f"{scheme}://{name}:{port}/v1/submissions" for name, _ in names)
        return cls("spark://" + ",".join(f"{name}:{port}" for name, port in names), addresses, webui, token)

    async def submit(self, submission: Submission, name: str) -> str:
        """The id of the driver that will run it as the application ``name``.

        Raises:
            SparkMasterUnavailable: it may have been submitted all the same.
            SparkMasterRefused: it was not.
        """
        answer = await self._request("POST", "create", submission.request(self.url, name))
        if answer.get("success") is not True:
            raise SparkMasterRefused(f"the Spark master did not take the job: {_first_line(answer.get('message'))}")
        driver = answer.get("submissionId")
        if not _is_driver(driver):
            raise SparkMasterUnavailable("the Spark master took the job, but its answer names no valid submissionId")
        return driver

    async def state(self, driver: str) -> str:
        """Of a driver: one of ``GOING``, ``FINISHED``, ``FAILED``, ``KILLED``, ``ERROR`` or ``LOST``."""
        answer = await self._request("GET", f"status/{quote(driver, safe='')}")
        state = answer.get("driverState")
        if state is None:
            return LOST
        if state not in (*GOING, *ENDED):
            raise SparkMasterUnavailable(f"the Spark master names no known driverState for driver {driver}")
        return str(state)

    async def kill(self, driver: str) -> bool:
        """Have it ended; False when it had ended before."""
        answer = await self._request("POST", f"kill/{quote(driver, safe='')}")
        return answer.get("success") is True

    async def ended(self, driver: str, every: float) -> str:
        """The state in which a driver ended, asked for ``every`` so many seconds. While no master answers it goes on.

        Raises:
            SparkMasterRefused: this connection may not ask.
        """
        lost = False
        while True:
            try:
                state = await self.state(driver)
            except SparkMasterUnavailable as away:
                log.warning("Spark driver %s, asking again: %s", driver, away)
            else:
                if state not in (*GOING, LOST) or (state == LOST and lost):
                    return state
                lost = state == LOST  # a master that has just taken over may learn of it yet
            await asyncio.sleep(every)

    async def find(self, name: str, since: float) -> str | None:
        """Find the driver of the application ``name``, submitted after ``since`` (seconds since 1970) by a worker that
        died before it received the driver's id. None if no driver matches, or several do.

        The master's page lists drivers without the names of their applications. When the application runs, its driver
        is among those that were submitted since; when that is one, it is this one.
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
            raise SparkMasterUnavailable(f"{address} answers {status}: is webui the address of the master's pages?")
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
        """The answer of the master that is in charge. What may have arrived is not sent to another one."""
        import httpx

        address, problem = "", "none is named"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with asyncio.timeout(_ANSWER), _client(**headers) as client:
                for address in self.rest:
                    try:
                        status, answer = await _answer(client, method, f"{address}/{path}", body)
                    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                        problem = f"{address}: {type(error).__name__} {_first_line(str(error))}"
                        continue
                    if (standby := _standby(address, status, answer)) is None:
                        return answer
                    problem = standby
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable(address, error) from None
        raise SparkMasterUnavailable(f"no Spark master answers; {problem}")


def _client(**headers: str) -> httpx.AsyncClient:
    """For a server that may be anybody: nothing compressed. httpx follows no redirects by default."""
    import httpx

    timeout = httpx.Timeout(_ANSWER, connect=min(_ANSWER, _CONNECTED))
    return httpx.AsyncClient(timeout=timeout, headers={"Accept-Encoding": "identity", **headers})


async def _answer(
    client: httpx.AsyncClient, method: str, address: str, body: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of an answer; an empty object where it is something else.

    Raises:
        SparkMasterUnavailable: it is compressed or too large.
    """
    data = bytearray()
    async with client.stream(method, address, json=body) as response:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise SparkMasterUnavailable(f"{address} compresses its answer, which was not asked for")
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > _LARGEST_ANSWER:
                raise SparkMasterUnavailable(f"{address} answers with more than {_LARGEST_ANSWER:,} bytes")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    return response.status_code, answer if isinstance(answer, dict) else {}


def _standby(address: str, status: int, answer: Mapping[str, Any]) -> str | None:
    """Why another master has to be asked; None when this one has answered. Raises SparkMasterRefused."""
    message = _first_line(answer.get("message"))
    if status in {401, 403}:
        remedy = "give the connection's password the token that its spark.master.rest.filters ask for"
        raise SparkMasterRefused(f"{address} answers {status}: {remedy}")
    if not 200 <= status < 300:
        raise SparkMasterRefused(f"{address} answers {status}: {message or _WHO}")
    if not isinstance(answer.get("success"), bool):
        raise SparkMasterUnavailable(f"{address} answers without success: {_WHO}")
    if "Current state is not alive" in str(answer.get("message")):  # Master.scala, of a standby or while it recovers
        return f"{address}: {message}"
    return None


def _unavailable(address: str, error: Exception) -> SparkMasterUnavailable:
    if isinstance(error, TimeoutError):
        return SparkMasterUnavailable(f"{address}: no whole answer within {_ANSWER:g} s")
    return SparkMasterUnavailable(f"{address}: {type(error).__name__} {_first_line(str(error))}")


def _is_driver(value: object) -> TypeGuard[str]:
    """Whether it can be a driver's id, which goes into addresses, logs and pages."""
    return isinstance(value, str) and _DRIVER.fullmatch(value) is not None


def _is_page(address: str) -> bool:
    try:
        return urlsplit(address).scheme in ("http", "https") and "@" not in address
    except ValueError:
        return False


def _milliseconds(value: object) -> int:
    """A time of the master's page, which writes it as a string; 0 for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _objects(page: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a list of the master's page."""
    values = page.get(name)
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _first_line(text: object) -> str:
    """Of what a server said: printable, and not long."""
    line = text.strip().partition("\n")[0][:400] if isinstance(text, str) else ""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
