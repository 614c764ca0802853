"""Ask the server and the files, without this project's own client."""

import asyncio
import json
from base64 import b32encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import nats
import pyarrow.parquet as pq
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import BadRequestError, NotFoundError

CONSUMER = "work"
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Judge:
    """Knows the address of nats-server, the folder that work writes to, and the consumer to judge."""

    url: str
    out: Path
    consumer: str = CONSUMER

    def publish(self, stream: str, count: int) -> None:
        """Create a separate stream with this many messages, or add them to it, and wait until all are stored."""

        async def publish(js: JetStreamContext) -> None:
            await js.add_stream(name=stream, subjects=[f"{stream}.>"], allow_direct=True)
            messages = [(f"{stream}.{number % 3}", b"%d" % number) for number in range(count)]
            for subject, data in messages[:-1]:
                await js._nc.publish(subject, data)
            for subject, data in messages[-1:]:
                await js.publish(subject, data, timeout=60)  # its answer says that all are stored

        self._ask(publish)

    def create(self, stream: str, duplicate_window: float) -> None:
        """Create an empty stream that recognises ids for this many seconds."""

        async def create(js: JetStreamContext) -> None:
            await js.add_stream(
                name=stream, subjects=[f"{stream}.>"], allow_direct=True, duplicate_window=duplicate_window
            )

        self._ask(create)

    def lay(self, stream: str, subjects: list[str], ack_wait: float) -> None:
        """Create the stream, if it is missing, and the consumer, for messages from now on, with a short lease."""

        async def lay(js: JetStreamContext) -> None:
            with suppress(BadRequestError):  # it exists already
                await js.add_stream(name=stream, subjects=subjects, allow_direct=True)
            config = ConsumerConfig(
                durable_name=self.consumer,
                deliver_policy=DeliverPolicy.NEW,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ack_wait,
                max_ack_pending=-1,
                headers_only=True,
            )
            await js.add_consumer(stream, config)

        self._ask(lay)

    def send(self, messages: Iterable[tuple[str, bytes]]) -> list[int]:
        """Publish messages, each confirmed, and return their sequences."""

        async def send(js: JetStreamContext) -> list[int]:
            return [(await js.publish(subject, data)).seq for subject, data in messages]

        return self._ask(send)

    def comes_again(self, stream: str) -> int:
        """Pull and return how many messages the server delivers at this moment. They are negatively acknowledged."""

        async def pull(js: JetStreamContext) -> int:
            subscription = await js.pull_subscribe_bind(self.consumer, stream)
            try:
                messages = await subscription.fetch(100, timeout=1)
            except TimeoutError:
                return 0
            for message in messages:
                await message.nak()
            return len(messages)

        return self._ask(pull)

    def lease_ends(self, stream: str) -> None:
        """Return when what the consumer had leased by now, and was not renewed, is redelivered: a message that another
        consumer with its ack_wait leases now is."""

        async def redelivered(js: JetStreamContext) -> None:
            ack_wait = (await js.consumer_info(stream, self.consumer)).config.ack_wait
            one = ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait, max_ack_pending=1, inactive_threshold=240
            )
            other = (await js.add_consumer(stream, one)).name
            subscription = await js.pull_subscribe_bind(other, stream)
            (first,) = await subscription.fetch(1, timeout=30)
            (again,) = await subscription.fetch(1, timeout=240)
            assert again.metadata.sequence.stream == first.metadata.sequence.stream
            await js.delete_consumer(stream, other)

        self._ask(redelivered)

    def config(self, stream: str, consumer: str | None = None) -> dict[str, Any]:
        """The server's configuration of a stream, or of one of its consumers; empty if it does not exist."""

        async def ask(js: JetStreamContext) -> dict[str, Any]:
            name = f"STREAM.INFO.{stream}" if consumer is None else f"CONSUMER.INFO.{stream}.{consumer}"
            answer = json.loads((await js._nc.request(f"$JS.API.{name}")).data)
            return dict(answer.get("config", {}))

        return self._ask(ask)

    def stored(self, stream: str) -> int:
        """How many messages the stream has ever had: the last sequence."""

        async def last(js: JetStreamContext) -> int:
            return (await js.stream_info(stream)).state.last_seq

        return self._ask(last)

    def pending(self, stream: str) -> tuple[int, int]:
        """How many messages are undelivered, and how many are unacknowledged; 0 and 0 while there is no consumer."""

        async def state(js: JetStreamContext) -> tuple[int, int]:
            try:
                info = await js.consumer_info(stream, self.consumer)
            except NotFoundError:
                return 0, 0
            return info.num_pending or 0, info.num_ack_pending or 0

        return self._ask(state)

    def deliveries(self, stream: str) -> int:
        """How many deliveries the consumer has made."""

        async def delivered(js: JetStreamContext) -> int:
            return int((await js.consumer_info(stream, self.consumer)).delivered.consumer_seq)

        return self._ask(delivered)

    def pulls(self, stream: str) -> int:
        """How many pulls wait at the consumer."""

        async def waiting(js: JetStreamContext) -> int:
            try:
                return (await js.consumer_info(stream, self.consumer)).num_waiting or 0
            except NotFoundError:
                return 0

        return self._ask(waiting)

    def next_pull(self, stream: str) -> None:
        """Return when the consumer's next pull begins; a pull lasts 100 s."""

        async def pulled(js: JetStreamContext) -> None:
            await (await js._nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self.consumer}")).next_msg(timeout=240)

        self._ask(pulled)

    def tokens(self, run_id: str) -> dict[str, str | None]:
        """The open claims of a run in the ledger, each with the token of the attempt that holds it."""

        async def read(js: JetStreamContext) -> dict[str, str | None]:
            records = (await _bucket(js, "airflow_claims")).values()
            mine = [entry for record in records for entry in record["open"].items() if entry[1]["owner"][1] == run_id]
            return {claim_id: entry["token"] for claim_id, entry in mine}

        return self._ask(read)

    def ledger(self, stream: str) -> list[str]:
        """The states of the stream's claims in the ledger: held or open (in the record), done, failed or superseded."""

        async def read(js: JetStreamContext) -> list[str]:
            record = (await _bucket(js, "airflow_claims")).get(self._key(stream), {"open": {}})
            receipts = (await _bucket(js, "airflow_receipts")).values()
            waiting = ["held" if entry["token"] else "open" for entry in record["open"].values()]
            return sorted(waiting + [each["state"] for each in receipts if self._judges(stream, each)])

        return self._ask(read)

    def done(self, stream: str) -> dict[str, dict[str, Any]]:
        """The done claims: their receipts, and the entries of those that have none yet."""

        async def read(js: JetStreamContext) -> dict[str, dict[str, Any]]:
            done: dict[str, Any] = (await _bucket(js, "airflow_claims")).get(self._key(stream), {}).get("done", {})
            receipts = await _bucket(js, "airflow_receipts")
            return done | {
                key.rpartition(".")[2]: each
                for key, each in receipts.items()
                if self._judges(stream, each) and each["state"] == "done"
            }

        return self._ask(read)

    def subjects(self, stream: str) -> dict[str, int]:
        """How many messages the stream has on each subject."""

        async def count(js: JetStreamContext) -> dict[str, int]:
            return (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}

        return self._ask(count)

    def settled(self, stream: str) -> list[int]:
        """The sequences of all done receipts of the consumer; a sequence that was settled twice occurs twice."""
        done = self.done(stream).values()
        return sorted(
            sequence for each in done for first, last in each["ranges"] for sequence in range(first, last + 1)
        )

    def every_message_settled_once(self, stream: str, count: int) -> None:
        """Assert that nothing waits, and that every sequence is in exactly one done receipt and once in its files."""
        assert self.pending(stream) == (0, 0)
        assert self.settled(stream) == list(range(1, count + 1))
        done = self.done(stream)
        written = [
            sequence
            for key, each in done.items()
            for file in (self.out / stream / f"attempt={_output(key, each)}").glob("*.parquet")
            for sequence in pq.read_table(file, columns=["sequence"])["sequence"].to_pylist()
        ]
        assert sorted(written) == list(range(1, count + 1))

    def _key(self, stream: str) -> str:
        return ".".join(b32encode(name.encode()).rstrip(b"=").decode() for name in (stream, self.consumer))

    def _judges(self, stream: str, receipt: Mapping[str, Any]) -> bool:
        return (receipt["stream"], receipt["consumer"]) == (stream, self.consumer)

    def _ask(self, question: Callable[[JetStreamContext], Awaitable[Answer]]) -> Answer:
        async def connected() -> Answer:
            client = await nats.connect(self.url, connect_timeout=5)
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(connected())


def _output(claim_id: str, receipt: Mapping[str, Any]) -> str:
    """The name of a claim's output: the recorded value if several tasks worked on it, otherwise the attempt's."""
    value = receipt["value"]
    return value if isinstance(value, str) else f"{claim_id}-{receipt['token']}"


async def _bucket(js: JetStreamContext, bucket: str) -> dict[str, Any]:
    """The value of every key. nats-py's `keys` leaves a consumer behind each time, until the server refuses more."""
    prefix = f"$KV.{bucket}."
    try:
        subjects = (await js.stream_info(f"KV_{bucket}", subjects_filter=f"{prefix}>")).state.subjects or {}
    except NotFoundError:
        return {}
    messages = {subject: await js.get_last_msg(f"KV_{bucket}", subject, direct=True) for subject in subjects}
    return {subject.removeprefix(prefix): json.loads(message.data or b"") for subject, message in messages.items()}
