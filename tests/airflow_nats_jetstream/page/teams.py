"""The page in an Airflow with teams ([core] multi_team): whose connections, claims and tasks a user sees.

`make page` runs this file; `make test` does not collect it.
"""

from collections.abc import Iterator

import pytest

from airflow_nats_jetstream.page.tasks import HIDDEN
from tests.airflow_nats_jetstream.page.airflow import SAME, Airflow
from tests.airflow_nats_jetstream.page.world import CONSUMER, SECRET, STREAM, World

USERS = ("admin:admin", "op:op", "blue:op:blue", "look:viewer:blue", "red:op:red")


@pytest.fixture(scope="module")
def airflow(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Team blue has the DAG ``orders``, a connection in the database, and one in an environment variable."""
    extra = {"servers": world.nats.url, "ledger": "page"}
    full = {"conn_type": "nats", "login": "all", "password": SECRET, "extra": extra}
    stored = {"blues": {**full, "team_name": "blue"}, "shared": full}
    environment = {"everyones": full, "_blue___hidden": full}
    folder = tmp_path_factory.mktemp("page-teams")
    server = Airflow(folder, environment, stored, users=USERS, teams=("blue", "red"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("user", "listed"),
    [
        ("admin", ["blues", "everyones", "shared"]),
        ("op", ["everyones", "shared"]),
        ("blue", ["blues", "everyones", "shared"]),
        ("red", ["everyones", "shared"]),
        ("look", []),
    ],
)
def test_connections(airflow: Airflow, user: str, listed: list[str]) -> None:
    """A connection of a team is shown to its members. Connections of no team are shown to all whose role suffices."""
    with airflow.client(user) as client:
        found = client.get("connections").json()["connections"]
        assert [each["id"] for each in found if each["may_act"]] == [each["id"] for each in found] == listed
        for each in ("blues", "everyones", "shared"):
            expected = 200 if each in listed else 403
            assert client.get(f"connections/{each}/overview").status_code == expected


def test_another_team_may_not_act(airflow: Airflow, world: World) -> None:
    path = f"connections/blues/consumers/{STREAM}/{CONSUMER}/resume"
    with airflow.client("red", headers=SAME) as red, airflow.client("blue", headers=SAME) as blue:
        preview = blue.get(f"{path}/preview")
        assert preview.status_code == 200
        assert red.get(f"{path}/preview").status_code == 403
        assert red.post(path, json={"expected": preview.json()["revision"]}).status_code == 403
        assert blue.post(path, json={"expected": preview.json()["revision"]}).status_code == 200


@pytest.mark.parametrize("connection", ["hidden", "_blue___hidden", "blue___hidden", "HIDDEN"])
@pytest.mark.parametrize("user", ["blue", "red", "admin"])
def test_a_teams_environment_variable_is_not_found(airflow: Airflow, connection: str, user: str) -> None:
    with airflow.client(user) as client:
        answer = client.get(f"connections/{connection}/overview")
        assert (answer.status_code, answer.json()["error"]) == (404, "UnknownConnection")


def test_tasks_of_another_team(airflow: Airflow, world: World) -> None:
    """The claim itself is shown to everybody who may read the connection, and what its task returned is not."""
    path = f"connections/shared/claims/{world.claims['done']}"
    with airflow.client("red") as red, airflow.client("blue") as blue:
        shown, hidden = blue.get(path).json(), red.get(path).json()
    assert (shown["taken_by"]["task_id"], hidden["taken_by"]) == ("take", HIDDEN)
    assert (shown["value"]["rows"], hidden["value"]) == (0, None)
