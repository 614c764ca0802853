"""A service that authenticates the users of a server (auth callout, ADR-26)."""

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.aio.msg import Msg

from tests.jetstream_client.servers import Nkey


class Callout:
    """Admits every user for a number of seconds, while ``admits`` is True."""

    def __init__(self, seconds: int) -> None:
        self._issuer = Nkey("A")
        self._seconds = seconds
        self.admits = True
        self.admitted = 0
        self.config = (
            "accounts { AUTH { users: [{ user: auth, password: auth }] }, APP { jetstream: enabled }, SYS {} }\n"
            "system_account: SYS\n"
            f"authorization {{ auth_callout {{ issuer: {self._issuer.public}, account: AUTH, auth_users: [auth] }} }}\n"
        )

    @asynccontextmanager
    async def serving(self, url: str) -> AsyncIterator[None]:
        connection = await nats.connect(url, user="auth", password="auth")
        await connection.subscribe("$SYS.REQ.USER.AUTH", cb=self._answer)
        await connection.flush()
        try:
            yield
        finally:
            await connection.close()

    async def _answer(self, message: Msg) -> None:
        claims = message.data.split(b".")[1]
        request = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))["nats"]
        user = request["user_nkey"]
        answer: dict[str, object] = {"error": "not admitted"}
        if self.admits:
            self.admitted += 1
            limits = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
            expires = int(time.time()) + self._seconds + 1
            answer = {"jwt": self._issuer.issue(user, "user", limits, expires, audience="APP")}
        server = request["server_id"]["id"]
        await message.respond(self._issuer.issue(user, "authorization_response", answer, audience=server).encode())
