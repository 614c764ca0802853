# SPDX-License-Identifier: Apache-2.0
"""The routes of the actions. A GET of ``…/preview`` says what an action will do, and a POST carries it out if the state
is still the one that the preview showed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError

from airflow_nats_jetstream.page import tasks
from airflow_nats_jetstream.page.access import Actor, Editor, body_of
from airflow_nats_jetstream.page.actions import Pause, Release, ReleaseAll, Reset, Resume
from airflow_nats_jetstream.page.answers import Answer
from airflow_nats_jetstream.page.audit import AuditedRoute, asked, began
from airflow_nats_jetstream.page.claims import Filter
from airflow_nats_jetstream.page.errors import BadInput, Changed, NotOpen, Unfinished, status_of
from airflow_nats_jetstream.page.letter_actions import Discard, Replay
from airflow_nats_jetstream.page.preview import Action
from airflow_nats_jetstream.page.views import pool_of
from jetstream_client.errors import JetStreamError

LONGEST = 50.0
"""Seconds that the answer to an action may take, with everything that precedes the action. The page's script waits for
55 s, and many proxies for 60 s, so that the user gets this answer and not theirs."""

previews = APIRouter()
router = APIRouter(route_class=AuditedRoute)

Number = Annotated[int, Field(ge=1, lt=1 << 63)]
Chosen = Annotated[str, Field(max_length=255)]


class Parameters(BaseModel):
    """The parameters of an action: the query of its preview, and the body of the action.

    expected:  the revision of the preview. A preview has none.
    """

    expected: Annotated[str, Field(max_length=100)] = ""

    async def check(self, user: Any) -> None:
        """Raise an error if the user may not choose these values. By default, everybody who may act may do so."""


class OfRelease(Parameters):
    """The parameters of a release."""

    despite_alive: bool = False
    despite_unknown: bool = False

    @property
    def despite(self) -> dict[str, bool]:
        """What was confirmed."""
        return {"despite_alive": self.despite_alive, "despite_unknown": self.despite_unknown}


class OfReleaseAll(OfRelease):
    """The parameters of a release of all open claims that a filter selects. At least one of the names is given."""

    stream: Chosen = ""
    consumer: Chosen = ""
    held: Literal["", "yes", "no"] = ""
    dag: Chosen = ""
    run: Chosen = ""

    @property
    def wanted(self) -> Filter:
        """The filter."""
        if not (self.dag or (self.stream and self.consumer)) or (self.run and not self.dag):
            raise BadInput("nothing was done; choose a DAG, a run of a DAG, or a stream and a consumer")
        return Filter(self.stream, self.consumer, self.held, self.dag, self.run)

    async def check(self, user: Any) -> None:
        if self.dag and not await tasks.may_see(self.dag, user):
            raise NotOpen("no open claim matches, so there is nothing to release; look at the list of open claims")


class OfPause(Parameters):
    """The parameters of a pause."""

    until: Annotated[str, Field(max_length=40)]


class OfReset(Parameters):
    """The parameters of a reset."""

    sequence: Number | None = None


class OfLetters(Parameters):
    """The parameters of an action on dead letters."""

    numbers: Annotated[list[Number], Field(min_length=1, max_length=100)]
    unconfirmed: bool = False


@dataclass(frozen=True)
class Route:
    """The route of an action.

    verb:        the end of its path, and of the event in the audit log.
    path:        the path of what it acts on.
    parameters:  the class of its parameters.
    action:      called with the values in the path and the parameters; returns the action.
    """

    verb: str
    path: str
    parameters: type[Parameters]
    action: Callable[[Mapping[str, str], Any], Action]

    def add(self) -> None:
        """Add the routes of the action and of its preview."""
        path = f"/connections/{{connection_id}}/{self.path}/{self.verb}"
        previews.add_api_route(f"{path}/preview", _previewed(self), methods=["GET"])
        router.add_api_route(path, _performed(self), methods=["POST"], name=f"jetstream_{self.verb}")


def _previewed(route: Route) -> Callable[..., Awaitable[Answer]]:
    async def preview(request: Request, user: Editor) -> Answer:
        query = request.query_params
        values = {name: query.getlist(name) if name == "numbers" else query[name] for name in query}
        given = _checked(lambda: route.parameters.model_validate(values))
        await given.check(user)
        action = route.action(request.path_params, given)
        async with pool_of(request).use(request.path_params["connection_id"]) as line:
            async with asyncio.timeout(line.limits.answer):
                return Answer((await action.preview(line)).to_json())

    return preview


def _performed(route: Route) -> Callable[..., Awaitable[Answer]]:
    async def perform(request: Request, user: Actor) -> Answer:
        deadline = asyncio.get_running_loop().time() + LONGEST
        body = await body_of(request)
        given = _checked(lambda: route.parameters.model_validate_json(body, strict=True))
        asked(request, given.model_dump(exclude={"expected"}))
        await given.check(user)
        action = route.action(request.path_params, given)
        async with pool_of(request).use(request.path_params["connection_id"]) as line:
            async with asyncio.timeout(line.limits.answer):
                preview = await action.preview(line)
                if preview.revision != given.expected:
                    raise Changed(route.path.partition("/")[0])
            await began(request, preview.text)
            try:
                async with asyncio.timeout_at(deadline):
                    return Answer({"text": await preview.perform()})
            except (JetStreamError, TimeoutError) as error:
                if status_of(error) != Unfinished.status:
                    raise
                raise Unfinished(route.verb, str(error) or "it took too long") from error
            finally:
                line.changed()

    return perform


def _checked(read: Callable[[], Parameters]) -> Parameters:
    try:
        return read()
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise BadInput(f"nothing was done, because the field {field!r} is invalid: {first['msg']}") from None


_CONSUMER = "consumers/{stream}/{consumer}"
_LETTERS = "dead-letters/{stream}"

for _route in (
    Route(
        "release",
        "claims/{claim_id}",
        OfRelease,
        lambda of, given: Release(of["claim_id"], **given.despite),
    ),
    Route(
        "release_all",
        "claims",
        OfReleaseAll,
        lambda _, given: ReleaseAll(given.wanted, **given.despite),
    ),
    Route("pause", _CONSUMER, OfPause, lambda of, given: Pause(of["stream"], of["consumer"], given.until)),
    Route("resume", _CONSUMER, Parameters, lambda of, _: Resume(of["stream"], of["consumer"])),
    Route("reset", _CONSUMER, OfReset, lambda of, given: Reset(of["stream"], of["consumer"], given.sequence)),
    Route("replay", _LETTERS, OfLetters, lambda of, given: Replay(of["stream"], given.numbers, given.unconfirmed)),
    Route("discard", _LETTERS, OfLetters, lambda of, given: Discard(of["stream"], given.numbers, given.unconfirmed)),
):
    _route.add()
