"""The page while NATS is frozen, killed and restarted."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from demo.service import until
from tests.airflow_nats_jetstream.page.airflow import BASE, Airflow
from tests.airflow_nats_jetstream.page.world import World

PATH = "connections/other/overview"


def timed(client: httpx.Client, path: str) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    return client.get(path), time.monotonic() - began


def until_refused(client: httpx.Client) -> tuple[httpx.Response, float]:
    """The first answer that is not the overview that was made before the server was frozen."""
    while (found := timed(client, PATH))[0].status_code == 200:
        time.sleep(0.1)
    return found


def test_a_frozen_server_is_reported_and_nothing_else_waits_for_it(airflow: Airflow, world: World) -> None:
    """While all of 20 requests wait for the frozen server, Airflow's other routes answer."""
    with airflow.client("op") as client, ThreadPoolExecutor(20) as pool:
        assert client.get(PATH).status_code == 200
        world.other.freeze()
        try:
            waiting = [pool.submit(until_refused, client) for _ in range(20)]
            answered = 0  # while nobody was refused yet
            while not all(each.done() for each in waiting):
                assert client.get(f"{airflow.url}{BASE}/api/v2/connections").status_code == 200
                answered += not any(each.done() for each in waiting)
            refused = [each.result() for each in waiting]
        finally:
            world.other.thaw()
        for answer, seconds in refused:
            assert (answer.status_code, set(answer.json())) == (502, {"error", "message"})
            assert seconds < 30
        assert answered >= 3
        until("the page to recover", lambda: client.get(PATH).status_code == 200, 20)


def test_a_killed_server_is_reported_until_it_is_back(airflow: Airflow, world: World) -> None:
    with airflow.client("op") as client:
        until("the page to answer", lambda: client.get(PATH).status_code == 200, 20)
        world.other.kill()
        answer, _ = until_refused(client)
        assert answer.status_code == 502
        again = client.get(PATH)
        assert (again.status_code, again.json()) == (502, answer.json())
        world.other.start()
        until("the page to recover", lambda: client.get(PATH).status_code == 200, 20)
