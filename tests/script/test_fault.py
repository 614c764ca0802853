"""What the page says after a request that failed, and when it asks again."""

import json
from typing import Any

import pytest

from tests.script.modules import Modules


@pytest.mark.parametrize(
    ("status", "body", "type_", "message"),
    [
        (401, {"detail": "Not authenticated"}, "Expired", "Your session has expired. Log in again."),
        (409, {"error": "HolderAlive", "message": "It is alive."}, "HolderAlive", "It is alive."),
        (502, {"error": "RequestTimeout", "message": "NATS is too slow."}, "RequestTimeout", "NATS is too slow."),
        (403, {"detail": "Forbidden"}, "", "You may not do this with the connection. Ask an administrator of Airflow."),
        (500, None, "", "Airflow answered with status 500 and without an explanation. Its api-server's log says more."),
        (
            502,
            {"message": 7},
            "",
            "Airflow answered with status 502 and without an explanation. Its api-server's log says more.",
        ),
    ],
)
def test_a_fault_says_what_is_wrong(modules: Modules, status: int, body: Any, type_: str, message: str) -> None:
    fault = f"require('./fault.js').faultOf({status}, {json.dumps(body)})"
    assert modules.evaluate(f"(({{ status, type, message }}) => [status, type, message])({fault})") == [
        status,
        type_,
        message,
    ]


def test_an_action_without_an_answer_may_have_been_carried_out(modules: Modules) -> None:
    message = modules.evaluate("require('./fault.js').unfinished().message")
    assert message.startswith(modules.evaluate("require('./fault.js').unreachable().message"))
    assert "may have been carried out nevertheless" in message


def test_failures_make_the_requests_rarer_up_to_one_minute(modules: Modules) -> None:
    assert [modules.call("fault", "pause", failures) for failures in range(7)] == [5, 10, 20, 40, 60, 60, 60]
    assert [modules.call("fault", "pause", failures, 30) for failures in range(4)] == [30, 30, 30, 40]


def test_pauses_vary_so_that_pages_do_not_keep_asking_together(modules: Modules) -> None:
    assert [modules.call("fault", "varied", 5, random) for random in (0, 0.5, 1)] == [4_000, 5_000, 6_000]
