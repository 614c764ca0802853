"""Stand-ins for the services of providers: they speak as much of each protocol as the provider's operator uses.

A job takes longer than the consumer's ack_wait. Each stand-in remembers what was submitted, and when its jobs end.
"""

import itertools
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

SECONDS = 8.0  # longer than ack_wait

Answer = tuple[int, Any]


@dataclass
class Job:
    """A job: what was submitted, and whether it has ended."""

    number: int
    body: Any
    began: float = field(default_factory=time.time)
    cancelled: bool = False

    @property
    def ends(self) -> float:
        return self.began + SECONDS

    @property
    def running(self) -> bool:
        return not self.cancelled and time.time() < self.ends


class StandIn:
    """One service. A subclass answers requests."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._numbers = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection to it."""
        raise NotImplementedError

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        """Return status and JSON, or None for a request that the service does not know."""
        raise NotImplementedError

    def submit(self, body: Any) -> Job:
        job = Job(next(self._numbers), body)
        self.jobs.append(job)
        return job

    def job(self, number: Any) -> Job:
        return next(each for each in self.jobs if each.number == int(number))


class Http(StandIn):
    """Any service behind HttpOperator: the answer takes as long as the job."""

    connection: ClassVar[dict[str, Any]] = {}  # set when the port is known

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        job = self.submit(body)
        time.sleep(SECONDS)
        return 200, {"job": job.number}


class Databricks(StandIn):
    """Jobs API 2.2: submit, get, cancel."""

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_type": "databricks", "host": "127.0.0.1", "schema": "http", "port": self.port, "password": "t"}

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        if path.endswith("/jobs/runs/submit"):
            return 200, {"run_id": self.submit(body).number}
        if "/jobs/runs/get?" in path or path.endswith("/jobs/runs/get"):
            job = self.job(body["run_id"])
            state = {"life_cycle_state": "RUNNING" if job.running else "TERMINATED", "state_message": ""}
            if not job.running:
                state["result_state"] = "CANCELED" if job.cancelled else "SUCCESS"
            page = f"http://127.0.0.1:{self.port}/run/{job.number}"
            return 200, {"job_id": 1, "run_id": job.number, "run_page_url": page, "state": state}
        if path.endswith("/jobs/runs/cancel"):
            self.job(body["run_id"]).cancelled = True
            return 200, {}
        return None


class Aws(StandIn):
    """EMR steps and Glue job runs, in the JSON protocol of AWS."""

    @property
    def connection(self) -> dict[str, Any]:
        extra = {"endpoint_url": f"http://127.0.0.1:{self.port}", "region_name": "eu-central-1"}
        return {"conn_type": "aws", "login": "key", "password": "secret", "extra": extra}

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        match headers.get("X-Amz-Target", "").partition(".")[2]:
            case "DescribeCluster":
                return 200, {"Cluster": {"Id": body["ClusterId"], "Name": "c", "Status": {"State": "RUNNING"}}}
            case "AddJobFlowSteps":
                return 200, {"StepIds": [f"s-{self.submit(body).number}"]}
            case "DescribeStep":
                job = self.job(body["StepId"].removeprefix("s-"))
                status = {"State": "RUNNING" if job.running else "COMPLETED"}
                return 200, {"Step": {"Id": body["StepId"], "Name": "step", "Status": status}}
            case "GetJob":
                return 200, {"Job": {"Name": body["JobName"]}}
            case "StartJobRun":
                return 200, {"JobRunId": f"jr_{self.submit(body).number}"}
            case "GetJobRun":
                job = self.job(body["RunId"].removeprefix("jr_"))
                return 200, {"JobRun": {"Id": body["RunId"], "JobRunState": "RUNNING" if job.running else "SUCCEEDED"}}
        return None


class Kubernetes(StandIn):
    """Pods of one namespace: create, read, list, patch, delete, events and logs."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Job] = {}

    @property
    def connection(self) -> dict[str, Any]:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "current-context": "x",
        }
        return {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(config), "namespace": "default"}}

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        found = re.fullmatch(r"/api/v1/namespaces/default/(pods|events)(?:/([\w.-]+))?(/log)?(?:\?.*)?", path)
        if not found:
            return None
        kind, name, log = found.groups()
        if kind == "events" or (name is None and method == "GET"):
            selector = body.get("labelSelector", "")
            pods = [self._pod(each) for each in self.pods.values() if kind == "pods" and _selected(each, selector)]
            listed = "EventList" if kind == "events" else "PodList"
            return 200, {"kind": listed, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": pods}
        if method == "POST":
            self.pods[body["metadata"]["name"]] = job = self.submit(body)
            return 201, self._pod(job)
        if name not in self.pods:
            return 404, {"kind": "Status", "status": "Failure", "code": 404}
        if log:
            return 200, "done\n"
        if method == "DELETE":
            self.pods.pop(name).cancelled = True
            return 200, {"kind": "Status", "status": "Success"}
        return 200, self._pod(self.pods[name])

    def _pod(self, job: Job) -> dict[str, Any]:
        since = "2026-01-01T00:00:00Z"
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": since, "finishedAt": since}}
        status = {
            "name": job.body["spec"]["containers"][0]["name"],
            "image": "image",
            "imageID": "",
            "restartCount": 0,
            "ready": job.running,
            "state": {"running": {"startedAt": since}} if job.running else ended,
        }
        phase = "Running" if job.running else "Succeeded"
        own = {"uid": str(job.number), "namespace": "default", "creationTimestamp": since}
        metadata = {**own, **job.body["metadata"]}
        return {**job.body, "metadata": metadata, "status": {"phase": phase, "containerStatuses": [status]}}


def _selected(pod: Job, selector: str) -> bool:
    """Whether a pod has the labels of a selector: ``name=value``, ``name!=value``, ``!name``."""
    labels = pod.body["metadata"].get("labels", {})
    for each in filter(None, selector.split(",")):
        name, _, value = each.partition("=")
        if each.startswith("!"):
            fits = each[1:] not in labels
        elif name.endswith("!"):
            fits = labels.get(name[:-1]) != value
        else:
            fits = labels.get(name) == value
        if not fits:
            return False
    return True


class Livy(StandIn):
    """Batches: create, state, log, delete."""

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_type": "livy", "host": "127.0.0.1", "schema": "http", "port": self.port}

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        if (method, path) == ("POST", "/batches"):
            return 201, self._batch(self.submit(body))
        if not (found := re.fullmatch(r"/batches/(\d+)(/state|/log)?(?:\?.*)?", path)):
            return None
        job = self.job(found[1])
        if method == "DELETE":
            job.cancelled = True
            return 200, {"msg": "deleted"}
        if found[2] == "/log":
            return 200, {"id": job.number, "from": 0, "total": 1, "log": ["done"]}
        return 200, self._batch(job)

    def _batch(self, job: Job) -> dict[str, Any]:
        return {
            "id": job.number,
            "appId": f"application_{job.number}",
            "state": "running" if job.running else "success",
        }


class Airbyte(StandIn):
    """Jobs of the public API: create, get, cancel."""

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_type": "airbyte", "host": f"http://127.0.0.1:{self.port}/api/public/v1/"}

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        if method == "POST" and path.endswith("/jobs"):
            return 200, self._job(self.submit(body))
        if found := re.search(r"/jobs/(\d+)$", path):
            job = self.job(found[1])
            job.cancelled |= method == "DELETE"
            return 200, self._job(job)
        return None

    def _job(self, job: Job) -> dict[str, Any]:
        status = "running" if job.running else "succeeded"
        return {
            "jobId": job.number,
            "status": status,
            "jobType": "sync",
            "startTime": "2026-01-01T00:00:00Z",
            "connectionId": "00000000-0000-0000-0000-000000000000",
        }


class Jenkins(StandIn):
    """A job with parameters: start, queue, build."""

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_type": "jenkins", "host": "127.0.0.1", "port": self.port, "login": "u", "password": "p"}

    def answer(self, method: str, path: str, headers: Any, body: Any) -> Answer | None:
        at = f"http://127.0.0.1:{self.port}"
        if "/buildWithParameters" in path:
            query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
            job = self.submit({**query, **(body if isinstance(body, dict) else {})})
            return 201, {"Location": f"{at}/queue/item/{job.number}/"}
        if found := re.search(r"/queue/item/(\d+)/api/json", path):
            number = int(found[1])
            return 200, {"id": number, "executable": {"number": number, "url": f"{at}/job/delays/{number}/"}}
        if found := re.search(r"/job/delays/(\d+)/api/json", path):
            job = self.job(found[1])
            result = None if job.running else "SUCCESS"
            return 200, {"number": job.number, "building": job.running, "result": result, "url": f"{at}/job/delays/"}
        return None


class StandIns:
    """All stand-ins, and the variables with which Airflow finds them."""

    def __enter__(self) -> Self:
        self.services: dict[str, StandIn] = {
            "http": Http(),
            "databricks": Databricks(),
            "aws": Aws(),
            "kubernetes": Kubernetes(),
            "livy": Livy(),
            "airbyte": Airbyte(),
            "jenkins": Jenkins(),
        }
        http = self.services["http"]
        http.connection = {"conn_type": "http", "host": f"http://127.0.0.1:{http.port}"}  # type: ignore[misc]
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services.values():
            service.stop()

    @property
    def environment(self) -> dict[str, str]:
        return {
            f"AIRFLOW_CONN_{name.upper()}_DEFAULT": json.dumps(service.connection)
            for name, service in self.services.items()
        }


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(length).decode()
            try:
                body: Any = json.loads(data) if data else {}
            except ValueError:
                body = {name: values[0] for name, values in parse_qs(data).items()}
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            body = {**query, **body} if isinstance(body, dict) else body
            answer = stand_in.answer(self.command, self.path, self.headers, body)
            status, value = answer or (404, {"error": f"{self.command} {self.path} is unknown"})
            text = value if isinstance(value, str) else json.dumps(value)
            self.send_response(status)
            if isinstance(value, dict) and "Location" in value:
                self.send_header("Location", value["Location"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    return Handler
