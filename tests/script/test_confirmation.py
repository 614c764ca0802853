"""An action is sent only after its preview was displayed and confirmed, and a refusal leads to a new preview."""

from typing import Any

import pytest

from tests.script.modules import Modules

PREVIEW = {"revision": "r1", "text": "50 messages are redelivered.", "dangerous": False, "silence": 12}


def after(modules: Modules, *events: dict[str, Any]) -> Any:
    state = modules.evaluate("require('./confirmation.js').BEGIN")
    for event in events:
        state = modules.call("confirmation", "next", state, event)
    return state


def previewed(**changed: Any) -> dict[str, Any]:
    return {"type": "previewed", "preview": PREVIEW | changed}


def refused(status: int, error: str = "", message: str = "It changed.") -> dict[str, Any]:
    return {"type": "refused", "fault": {"status": status, "type": error, "message": message}}


def confirmed(modules: Modules, state: Any, word: str = "5f0c9a7be21d") -> Any:
    return modules.call("confirmation", "confirmed", state, word)


def test_nothing_can_be_sent_before_the_preview(modules: Modules) -> None:
    assert not confirmed(modules, after(modules))
    assert confirmed(modules, after(modules, previewed()))


def test_a_dangerous_action_needs_the_exact_word(modules: Modules) -> None:
    for text, may in [("", False), ("5f0c9a7be21", False), ("5F0C9A7BE21D", False), (" 5f0c9a7be21d ", True)]:
        assert confirmed(modules, after(modules, previewed(dangerous=True), {"type": "typed", "text": text})) is may


def test_an_action_is_sent_once(modules: Modules) -> None:
    assert not confirmed(modules, after(modules, previewed(), {"type": "sent"}))
    done = after(modules, previewed(), {"type": "sent"}, {"type": "succeeded", "text": "Released."})
    assert (done["phase"], done["text"]) == ("done", "Released.")
    assert not confirmed(modules, done)


def test_changed_choices_need_a_new_preview_and_a_new_word(modules: Modules) -> None:
    state = after(modules, previewed(dangerous=True), {"type": "typed", "text": "5f0c9a7be21d"}, {"type": "edited"})
    assert (state["phase"], state["typed"], state["revision"]) == ("asking", "", "")


@pytest.mark.parametrize("status", [409, 422, 502, 0])
def test_a_refusal_is_explained_and_followed_by_the_new_state(modules: Modules, status: int) -> None:
    state = after(modules, previewed(), {"type": "sent"}, refused(status))
    assert (state["phase"], state["note"], state["revision"]) == ("asking", "It changed.", "")
    state = modules.call("confirmation", "next", state, previewed(revision="r2"))
    assert (state["phase"], state["note"], state["revision"]) == ("ready", "It changed.", "r2")
    assert confirmed(modules, state)


def test_a_holder_that_may_be_alive_makes_the_release_dangerous(modules: Modules) -> None:
    """That it is unknown is not the same as that it is alive."""
    refusal = refused(409, "HolderUnknown", "It may be alive.")
    state = after(modules, previewed(), {"type": "sent"}, refusal, previewed())
    assert (state["alive"], state["unknown"], state["dangerous"], state["note"]) == (
        False,
        True,
        True,
        "It may be alive.",
    )
    alive = after(modules, previewed(), {"type": "sent"}, refusal, refused(409, "HolderAlive", "It is alive."))
    assert (alive["alive"], alive["unknown"]) == (True, False)


def test_a_holder_that_is_alive_makes_the_release_dangerous(modules: Modules) -> None:
    state = after(modules, previewed(), {"type": "sent"}, refused(409, "HolderAlive", "It is alive."), previewed())
    assert (state["alive"], state["dangerous"], state["note"]) == (True, True, "It is alive.")
    assert not confirmed(modules, state)
    assert confirmed(modules, modules.call("confirmation", "next", state, {"type": "typed", "text": "5f0c9a7be21d"}))
    again = after(
        modules, previewed(), {"type": "sent"}, refused(409, "HolderAlive"), previewed(), {"type": "sent"}, refused(409)
    )
    assert not again["alive"]


def test_an_expired_session_ends_the_dialog(modules: Modules) -> None:
    for state in (
        after(modules, previewed(), {"type": "sent"}, refused(401, "", "Log in again.")),
        after(modules, {"type": "unavailable", "fault": {"status": 401, "type": "", "message": "Log in again."}}),
    ):
        assert (state["phase"], state["expired"], state["note"]) == ("failed", True, "Log in again.")
