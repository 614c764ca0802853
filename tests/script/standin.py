"""A stand-in of the page's API, below the real files of Airflow's UI.

The real UI displays the page, with its frame, theme, React, router and Chakra UI. The stand-in answers the page, so
that a browser sees every view in states that are hard to cause: thousands of claims, hostile strings, faults.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import airflow
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from demo.service import free_port, until
from tests.script.modules import STATIC

DIST = Path(next(iter(airflow.__path__))) / "ui" / "dist"
BASE = "/af"
BUNDLE = f"{BASE}/jetstream/static/0123abcd/jetstream.js"
PLUGIN = {
    "name": "JetStream",
    "bundle_url": BUNDLE,
    "destination": "nav",
    "category": "browse",
    "url_route": "jetstream",
}
MENUS = [
    "Dags",
    "Assets",
    "Audit Log",
    "Connections",
    "Docs",
    "Plugins",
    "Pools",
    "Providers",
    "Variables",
    "XComs",
    "Config",
]
AIRFLOW: dict[str, Any] = {
    "ui/config": {
        "fallback_page_limit": 50,
        "auto_refresh_interval": 3,
        "hide_paused_dags_by_default": False,
        "instance_name": "Airflow",
        "enable_swagger_ui": True,
        "require_confirmation_dag_change": False,
        "default_wrap": False,
        "test_connection": "Disabled",
        "dashboard_alert": [],
        "show_external_log_redirect": False,
        "external_log_name": None,
        "theme": None,
        "multi_team": False,
    },
    "ui/auth/menus": {"authorized_menu_items": MENUS, "extra_menu_items": []},
    "ui/auth/me": {"id": "1", "username": "admin"},
    "api/v2/version": {"version": airflow.__version__, "git_version": None},
    "api/v2/plugins": {
        "plugins": [
            {
                "name": "jetstream",
                "react_apps": [PLUGIN],
                "external_views": [],
                "fastapi_apps": [],
                "appbuilder_views": [],
                "appbuilder_menu_items": [],
            }
        ],
        "total_entries": 1,
    },
}
"""What the UI asks of Airflow before it shows a page of a plugin."""

Answer = Callable[[Request, Any], tuple[int, Any]]
"""The status and the JSON of an answer, by the request and its body."""


class StandIn:
    """Answers the page.

    `answers` maps patterns of paths to what answers them, and the first match counts.
    `requests` contains the method, the path with its query, and the body of each request of the page.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{BASE}/plugin/jetstream"
        routes = [
            Mount(f"{BASE}/static", StaticFiles(directory=DIST)),
            Mount(f"{BASE}/jetstream/static/0123abcd", StaticFiles(directory=STATIC)),
            Route(f"{BASE}/jetstream/api/{{path:path}}", self._api, methods=["GET", "POST"]),
            Route("/{path:path}", _airflow),
        ]
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=self.port, log_level="warning")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    async def _api(self, request: Request) -> Response:
        body = await request.json() if request.method == "POST" else None
        path = request.path_params["path"]
        self.requests.append((request.method, f"{path}?{request.url.query}".rstrip("?"), body))
        for pattern, answer in self.answers.items():
            if re.fullmatch(pattern, path):
                status, content = answer(request, body)
                return JSONResponse(content, status)
        return JSONResponse({"error": "NotFound", "message": f"The stand-in has no answer for {path}."}, 404)

    def always(self, pattern: str, content: Any, status: int = 200) -> None:
        """Answer requests whose path matches the pattern with this JSON, instead of earlier answers."""
        self.answers = {
            pattern: lambda _request, _body: (status, content),
            **{k: v for k, v in self.answers.items() if k != pattern},
        }

    def start(self) -> None:
        self._thread.start()
        until("the stand-in to listen", lambda: self._server.started, 30, every=0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


async def _airflow(request: Request) -> Response:
    path = request.url.path.removeprefix(f"{BASE}/")
    if path in AIRFLOW:
        return JSONResponse(AIRFLOW[path])
    if path.startswith(("ui/", "api/")):
        return JSONResponse({"total_entries": 0}, 404)
    page = (DIST / "index.html").read_text()
    return HTMLResponse(page.replace("{{ backend_server_base_url }}", f"{BASE}/"))


@contextmanager
def served() -> Iterator[StandIn]:
    standin = StandIn()
    standin.start()
    try:
        yield standin
    finally:
        standin.stop()


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
