"""The plugin as Airflow loads it, and the files that it names."""

import json
import subprocess
import sys

import httpx

from tests.airflow_nats_jetstream.page.airflow import BASE, Airflow

LOADS = """
import json, sys, airflow.plugins_manager
before = set(sys.modules)
from airflow_nats_jetstream.page.plugin import JetStreamPlugin
assert JetStreamPlugin().name == "jetstream"
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_plugin_loads_nothing_outside_the_api_server() -> None:
    """Workers and schedulers import it, too."""
    printed = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True).stdout
    loaded = json.loads(printed.splitlines()[-1])
    others = [each for each in loaded if not each.startswith(("airflow.", "pydantic."))]
    assert others == [f"airflow_nats_jetstream.{each}" for each in ("airflow_version", "compat", "page", "page.plugin")]
    assert not {"airflow.api_fastapi", "airflow.models"} & set(loaded)


def test_airflow_shows_the_page_and_serves_its_files(airflow: Airflow) -> None:
    """Airflow's own API names the bundle, relative to the base path. Browsers may keep the files forever."""
    headers = {"Authorization": f"Bearer {airflow.token('admin')}"}
    found = httpx.get(f"{airflow.url}{BASE}/api/v2/plugins", headers=headers).json()["plugins"]
    (app,) = next(each["react_apps"] for each in found if each["name"] == "jetstream")
    assert (app["name"], app["destination"], app["url_route"]) == ("JetStream", "nav", "jetstream")
    bundle = httpx.get(f"{airflow.url}{BASE}/{app['bundle_url']}")
    assert (bundle.status_code, bundle.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert bundle.headers["cache-control"].endswith("immutable")
    assert "JetStream" in bundle.text
    older = app["bundle_url"].split("/")
    wrong = [["jetstream", "static", "0" * 16, older[-1]], [*older[:-1], "no.js"], [*older[:-1], "%2e%2e/plugin.py"]]
    for path in wrong:
        assert httpx.get(f"{airflow.url}{BASE}/{'/'.join(path)}").status_code == 404


def test_no_import_of_the_plugin_failed(airflow: Airflow) -> None:
    headers = {"Authorization": f"Bearer {airflow.token('admin')}"}
    errors = httpx.get(f"{airflow.url}{BASE}/api/v2/plugins/importErrors", headers=headers).json()
    assert errors["import_errors"] == []
