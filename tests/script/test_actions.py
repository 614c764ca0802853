"""The requests of the actions."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.script.modules import Modules

RELEASE = {"kind": "release", "connection": "nats_default", "claim": "5f0c9a7be21d"}
PAUSE = {"kind": "pause", "connection": "nats_default", "stream": "FLIGHTS", "consumer": "delays"}
RESET = PAUSE | {"kind": "reset"}
ANY = {"stream": "", "consumer": "", "held": "", "dag": "", "run": ""}
RELEASE_ALL = {"kind": "release_all", "connection": "nats_default", **ANY}
OF_CONSUMER = {"stream": "FLIGHTS", "consumer": "delays", "held": "no"}
OF_RUN = {"dag": "flights", "run": "manual__1"}
REPLAY = {"kind": "replay", "connection": "nats_default", "stream": "FLIGHTS", "numbers": [3, 7]}
CHOICES = {"minutes": 60, "sequence": "", "unconfirmed": False}
NOW = 1_795_000_000_123


@pytest.mark.parametrize(
    ("action", "choices", "path", "parameters", "title", "word"),
    [
        (RELEASE, {}, "claims/5f0c9a7be21d/release", {}, "Release claim 5f0c9a7be21d?", "5f0c9a7be21d"),
        (
            RELEASE_ALL | OF_CONSUMER,
            {},
            "claims/release_all",
            ANY | OF_CONSUMER,
            "Release all open claims of consumer delays, stream FLIGHTS, held by nobody?",
            "delays",
        ),
        (
            RELEASE_ALL | OF_RUN,
            {},
            "claims/release_all",
            ANY | OF_RUN,
            "Release all open claims of run manual__1, Dag flights?",
            "manual__1",
        ),
        (
            PAUSE,
            {"minutes": 15},
            "consumers/FLIGHTS/delays/pause",
            {"until": "2026-11-18T11:21:40.000Z"},
            "Pause consumer delays of stream FLIGHTS?",
            "delays",
        ),
        (
            PAUSE | {"kind": "resume"},
            {},
            "consumers/FLIGHTS/delays/resume",
            {},
            "Resume consumer delays of stream FLIGHTS?",
            "delays",
        ),
        (
            RESET,
            {},
            "consumers/FLIGHTS/delays/reset",
            {"sequence": None},
            "Reset consumer delays of stream FLIGHTS?",
            "delays",
        ),
        (
            RESET,
            {"sequence": "12"},
            "consumers/FLIGHTS/delays/reset",
            {"sequence": 12},
            "Reset consumer delays of stream FLIGHTS?",
            "delays",
        ),
        (
            REPLAY,
            {"unconfirmed": True},
            "dead-letters/FLIGHTS/replay",
            {"numbers": [3, 7], "unconfirmed": True},
            "Replay 2 dead letters of stream FLIGHTS?",
            "FLIGHTS",
        ),
        (
            REPLAY | {"kind": "discard", "numbers": [3]},
            {},
            "dead-letters/FLIGHTS/discard",
            {"numbers": [3], "unconfirmed": False},
            "Discard 1 dead letter of stream FLIGHTS?",
            "FLIGHTS",
        ),
    ],
)
def test_an_action_has_a_title_a_word_and_a_request(
    modules: Modules, *, action: Any, choices: Any, path: str, parameters: Any, title: str, word: str
) -> None:
    assert modules.call("actions", "title", action) == title
    assert modules.call("actions", "word", action) == word
    assert modules.call("actions", "actionPath", action) == f"connections/nats_default/{path}"
    chosen = modules.call("actions", "parameters", action, CHOICES | choices, NOW)
    assert chosen == parameters
    preview = urlsplit(modules.call("actions", "previewPath", action, chosen))
    assert preview.path == f"connections/nats_default/{path}/preview"
    assert parse_qs(preview.query) == in_query(parameters)
    despite = {"despite_alive": True, "despite_unknown": False}
    body = modules.call("actions", "body", action, chosen, {"revision": "r1", "alive": True, "unknown": False})
    assert body == {"expected": "r1", **parameters, **(despite if action["kind"].startswith("release") else {})}


def in_query(parameters: dict[str, Any]) -> dict[str, list[str]]:
    lists = {name: value if isinstance(value, list) else [value] for name, value in parameters.items()}
    texts = {
        name: [str(each).lower() if each is True else str(each) for each in value if each]
        for name, value in lists.items()
    }
    return {name: value for name, value in texts.items() if value}


def test_a_name_that_cannot_be_addressed_has_no_request(modules: Modules) -> None:
    assert modules.call("actions", "previewPath", RELEASE | {"claim": ".."}, {}) is None


def test_the_word_is_what_the_page_shows(modules: Modules) -> None:
    assert modules.call("actions", "word", PAUSE | {"consumer": "a\u202eb"}) == r"a\u202eb"


@pytest.mark.parametrize(
    ("sequence", "valid"), [("", True), ("1", True), ("0", False), ("-1", False), ("1.5", False), ("x", False)]
)
def test_a_sequence_is_a_whole_number(modules: Modules, sequence: str, valid: bool) -> None:
    assert (modules.call("actions", "objection", RESET, CHOICES | {"sequence": sequence}) == "") is valid


def test_the_button_says_what_is_known_of_the_holder(modules: Modules) -> None:
    labels = [
        modules.call("actions", "decision", RELEASE, {"alive": alive, "unknown": unknown})
        for alive, unknown in ((False, False), (True, False), (False, True))
    ]
    assert labels == ["Release", "Release although it is alive", "Release although it may be alive"]
