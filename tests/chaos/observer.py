"""The state of the servers, read without our client: with nats-py's connection and the API's JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from tests.chaos.pipelines import CONSUMER

LEDGER = "airflow"  # that of an Airflow connection

Ranges = list[list[int]]


class Observer:
    """One server or cluster, and a ledger there. Every request has a time limit, and raises the errors of nats-py.

    options: more options of nats-py's connect.
    """

    def __init__(self, *urls: str, ledger: str = LEDGER, **options: Any) -> None:
        self._urls = list(urls)
        self._options = options
        self._receipts, self._claims = f"{ledger}_receipts", f"{ledger}_claims"
        self._client = Client()
        self._receipts_seen = 0

    async def __aenter__(self) -> Self:
        async def quiet(_: Exception) -> None:
            """The server is killed on purpose."""

        self._client = await nats.connect(
            self._urls,
            connect_timeout=2,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            error_cb=quiet,
            **self._options,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def api(self, request: str, payload: Any = None, timeout: float = 1) -> dict[str, Any]:
        """Return the decoded answer, which may be an error."""
        data = b"" if payload is None else json.dumps(payload).encode()
        answer = await self._client.request(f"$JS.API.{request}", data, timeout=timeout)
        decoded: dict[str, Any] = json.loads(answer.data)
        return decoded

    async def consumer(self, stream: str) -> dict[str, Any]:
        """Return CONSUMER.INFO; empty if the consumer does not exist."""
        answer = await self.api(f"CONSUMER.INFO.{stream}.{CONSUMER}")
        return {} if "error" in answer else answer

    async def edit(self, stream: str, changes: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
        """Change the consumer's configuration, or replace the ``whole`` of it. Returns the one before; empty if there
        is no consumer, or the server refuses the change."""
        config = (await self.consumer(stream)).get("config", {})
        edited = changes if whole else {**config, **changes}
        request = {"stream_name": stream, "config": edited, "action": "update"}
        answer = await self.api(f"CONSUMER.CREATE.{stream}.{CONSUMER}", request) if config else {"error": "none"}
        return {} if "error" in answer else config

    async def leaders(self, stream: str) -> dict[str, str]:
        """Return the servers that lead the stream, its consumer and the ledger; empty without a cluster."""
        asked = {
            "stream": f"STREAM.INFO.{stream}",
            "consumer": f"CONSUMER.INFO.{stream}.{CONSUMER}",
            "ledger": f"STREAM.INFO.KV_{self._claims}",
        }
        answers = {name: await self.api(request) for name, request in asked.items()}
        return {
            name: each["cluster"]["leader"] for name, each in answers.items() if each.get("cluster", {}).get("leader")
        }

    async def record(self, stream: str) -> dict[str, Any]:
        """Return the ledger's record of the stream's consumer; empty if there is none."""
        subject = f"$KV.{self._claims}.{_base32(stream)}.{_base32(CONSUMER)}"
        answer = await self.api(f"STREAM.MSG.GET.KV_{self._claims}", {"last_by_subj": subject})
        return {} if "error" in answer else dict(json.loads(base64.b64decode(answer["message"]["data"])))

    async def new_receipts(self) -> list[dict[str, Any]]:
        """Return the receipts written since the last call, each with its claim's `id`."""
        found: list[dict[str, Any]] = []
        while True:
            request = {"seq": self._receipts_seen + 1, "next_by_subj": f"$KV.{self._receipts}.>"}
            answer = await self.api(f"STREAM.MSG.GET.KV_{self._receipts}", request)
            if "error" in answer:
                return found
            message = answer["message"]
            self._receipts_seen = message["seq"]
            claim_id = message["subject"].rpartition(".")[2]
            value = json.loads(base64.b64decode(message["data"]))
            if "state" in value:  # not the mark that a reader's first batch was read
                found.append({"id": claim_id, **value})

    def forget(self) -> None:
        """Let the next call return all receipts again."""
        self._receipts_seen = 0

    async def done(self, stream: str) -> dict[str, dict[str, Any]]:
        """Return the claims that are done in the record, in the form of receipts."""
        entries = (await self.record(stream)).get("done", {})
        return {key: {"id": key, "state": "done", "stream": stream, **entry} for key, entry in entries.items()}

    async def stored(self, stream: str) -> dict[int, str]:
        """Return sequence and message id of all messages of the stream."""
        js = self._client.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, headers_only=True, mem_storage=True, num_replicas=1)
        subscription = await js.pull_subscribe("", stream=stream, config=config)
        found: dict[int, str] = {}
        try:
            while (await subscription.consumer_info()).num_pending:
                for message in await subscription.fetch(1_000, timeout=5):
                    found[message.metadata.sequence.stream] = (message.headers or {}).get("Nats-Msg-Id", "")
        finally:
            await subscription.unsubscribe()
        return found


def sequences(ranges: Ranges | str) -> Iterator[int]:
    """Yield the sequences of inclusive ranges. The ranges of claims here are never so many that they are packed."""
    if isinstance(ranges, str):
        raise TypeError("packed ranges: the chaos pipelines' claims are small")
    return (sequence for first, last in ranges for sequence in range(first, last + 1))


def _base32(name: str) -> str:
    return base64.b32encode(name.encode()).rstrip(b"=").decode()
