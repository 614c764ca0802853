# SPDX-License-Identifier: Apache-2.0
"""The plugin that adds the page to Airflow, and the listener for run events.

Every process of Airflow imports this module, and reads ``listeners``. Only the api-server (and ``airflow plugins``)
reads the other properties, which load FastAPI and the rest of this package.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow_nats_jetstream.compat import AirflowPlugin

PREFIX = "jetstream"
"""The first part of the paths of the page's API and files, below the base path of Airflow. The page itself has the path
``plugin/jetstream`` (:data:`airflow_nats_jetstream.links.PAGE`)."""


class JetStreamPlugin(AirflowPlugin):
    """The page "JetStream" in the navigation of Airflow, in the group Browse."""

    name = "jetstream"

    @cached_property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        from airflow_nats_jetstream.signals.run_events import listeners

        return listeners()

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from airflow_nats_jetstream.page.application import application

        return [{"app": application(), "url_prefix": f"/{PREFIX}", "name": "JetStream"}]

    @cached_property
    def react_apps(self) -> list[Any]:  # type: ignore[override]
        from airflow_nats_jetstream.page.files import BUNDLE, files

        app = {
            "name": "JetStream",
            "bundle_url": f"{PREFIX}/static/{files().digest}/{BUNDLE}",  # Airflow's page resolves it with its base path
            "destination": "nav",
            "category": "browse",
            "url_route": "jetstream",
        }
        return [app]
