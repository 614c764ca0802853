"""The server's refusals, each as its own class with the server's own words: FEATURES' section 10."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect, errors
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError
from tests.installed_server import has
from tests.jetstream_client.servers import Ask, Serve

CONSUMER = {"durable_name": "c", "ack_policy": "explicit"}


async def _update_absent(js: JetStream, stream: str) -> Any:
    body = {"stream_name": stream, "config": {"name": "none", "durable_name": "none"}, "action": "update"}
    return await js.api(f"CONSUMER.CREATE.{stream}.none", body)


async def _update_unknown(js: JetStream, stream: str) -> Any:
    return await js.stream(stream).update({"no_such": 1})


REFUSALS: list[tuple[int, type[ApiError], Callable[[JetStream, str], Awaitable[Any]]]] = [
    (10059, errors.StreamNotFound, lambda js, _: js.get_stream("NONE")),
    (10058, errors.StreamNameInUse, lambda js, name: js.create_stream({"name": name, "subjects": ["other"]})),
    (10052, errors.InvalidStreamConfig, lambda js, name: js.stream(name).update({"storage": "memory"})),
    *([(10025, errors.InvalidRequest, _update_unknown)] if has("2.12") else []),
    (10014, errors.ConsumerNotFound, lambda js, name: js.get_consumer(name, "none")),
    (10149, errors.ConsumerDoesNotExist, _update_absent),
    (10148, errors.ConsumerAlreadyExists, lambda js, name: js.create_consumer(name, {**CONSUMER, "max_waiting": 5})),
    (10012, errors.ConsumerCreateFailed, lambda js, name: js.consumer(name, "c").update({"ack_policy": "none"})),
    (10037, errors.MessageNotFound, lambda js, name: js.stream(name).get_message(5)),
    (10043, errors.SequenceNotFound, lambda js, name: js.stream(name).delete_message(2)),
    (10057, errors.MessageDeleteFailed, lambda js, name: js.stream(name).delete_message(5)),
    (10003, errors.BadRequest, lambda js, name: js.api(f"STREAM.PURGE.{name}", {"seq": 1, "keep": 1})),
    (10116, ApiError, lambda js, name: js.create_consumer(name, {"backoff": [1, 2], "max_deliver": 1})),
]
"""Error code, class, and a request that the server refuses with it. The last code has no separate class."""


async def test_each_refusal_has_its_class(js: JetStream, ask: Ask, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [name]})
    for _ in range(3):
        await js.publish(name)
    await stream.delete_message(2)
    await stream.create_consumer(CONSUMER)
    for err_code, kind, refused in REFUSALS:
        with pytest.raises(ApiError) as error:
            await refused(js, name)
        assert (type(error.value), error.value.err_code) == (kind, err_code)
        assert error.value.code >= 400
        assert error.value.description in str(error.value)
    # A refused request has changed nothing.
    assert (await ask(f"STREAM.INFO.{name}"))["state"]["messages"] == 2
    assert (await ask(f"CONSUMER.NAMES.{name}"))["consumers"] == ["c"]


@pytest.mark.parametrize(
    ("err_code", "kind"),
    [(10013, errors.ConsumerNameInUse), (10105, errors.ConsumerAlreadyExists), (10076, errors.JetStreamNotEnabled)],
)
def test_codes_that_this_server_does_not_send(err_code: int, kind: type[ApiError]) -> None:
    error = ApiError.from_response({"code": 503, "err_code": err_code, "description": "the server's words"})
    assert (type(error), error.code, error.err_code, error.description) == (kind, 503, err_code, "the server's words")


async def test_an_account_without_jetstream(serve: Serve) -> None:
    server = serve("accounts { WITH: { jetstream: enabled, users: [] }, A: { users: [{ user: a, password: open }] } }")
    settings = ConnectionSettings(servers=server.url, user="a", password="open")
    async with connect(settings) as js:
        for refused in (js.account_info(), js.create_stream({"name": "S"}), js.get_stream("S")):
            with pytest.raises(errors.JetStreamNotEnabledForAccount) as error:
                await refused
            assert (error.value.code, error.value.err_code) == (503, 10039)


async def test_where_nobody_answers(js: JetStream) -> None:
    with pytest.raises(
        errors.JetStreamNotEnabled, match="correct the domain, the API prefix or the permissions"
    ) as error:
        await js.with_options(api_prefix="$JS.nowhere.API").account_info()
    assert error.value.code == 503
