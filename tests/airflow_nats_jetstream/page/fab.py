"""The page's rights with FAB's auth manager, for which `apache-airflow-providers-fab` must be installed.

It is not part of `make test`, because FAB and its 25 packages would be installed for it alone, and it needs an older
python-dateutil:

    uv pip install apache-airflow-providers-fab && pytest tests/airflow_nats_jetstream/page/fab.py
"""

from collections.abc import Iterator

import pytest

from tests.airflow_nats_jetstream.page import test_rights
from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.world import SECRET, World

MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"


@pytest.fixture(scope="module")
def airflow(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    extra = {"servers": world.nats.url, "ledger": "page"}
    full = {"conn_type": "nats", "login": "all", "password": SECRET, "extra": extra}
    server = Airflow(tmp_path_factory.mktemp("page-fab"), {"full": full}, stored={"stored": full}, manager=MANAGER)
    server.start()
    yield server
    server.stop()


test_roles = test_rights.test_roles
test_other_pages = test_rights.test_an_action_that_another_page_may_have_caused_is_refused
test_tokens = test_rights.test_a_wrong_cookie_and_a_bearer_token


def test_connections(airflow: Airflow) -> None:
    with airflow.client("op") as op, airflow.client("viewer") as viewer:
        listed = op.get("connections").json()["connections"]
        assert listed == [{"id": "full", "may_act": True}, {"id": "stored", "may_act": True}]
        assert viewer.get("connections").json() == {"connections": []}
