"""A hub and a leaf node in different JetStream domains, with differently named accounts."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError

BUCKETS = ("claims", "receipts", "reserve")
LEAST = [
    "$SYS.REQ.USER.INFO",
    "$JS.ACK.hub.*.S.work.>",
    *(f"$JS.hub.API.STREAM.INFO.{stream}" for stream in ("S", *(f"KV_airflow_{bucket}" for bucket in BUCKETS))),
    "$JS.hub.API.STREAM.PURGE.KV_airflow_reserve",
    *(f"$JS.hub.API.CONSUMER.{request}.S.work" for request in ("INFO", "MSG.NEXT")),
    *(f"$JS.hub.API.STREAM.MSG.GET.KV_airflow_{bucket}" for bucket in ("claims", "receipts")),
    *(f"$JS.hub.API.$KV.airflow_{bucket}.>" for bucket in BUCKETS),
]
"""The subjects that a user may publish to, who takes and settles claims on the hub from the leaf node."""
_USERS = f"""users: [
  {{user: work, password: open}},
  {{user: least, password: open, permissions: {{publish: {json.dumps(LEAST)}, subscribe: "_INBOX.>"}}}},
  {{user: mute, password: open, permissions: {{publish: {{deny: "$SYS.REQ.USER.INFO"}}}}}}
]"""


_SEQUENCES = ("stream_seq", "consumer_seq")


class Domains:
    """Streams, consumers and buckets of the same names can exist on both. ``hub`` and ``leaf`` also name the domains.

    The leaf node's account is EDGE. On the hub its clients act in the account CORE.
    """

    def __init__(self, folder: Path, *, eleven_tokens: bool = False) -> None:
        self.reply_tokens = 11 if eleven_tokens else 9
        port = free_port()
        authorization = "authorization { user: edge, password: link, account: CORE }"
        remote = f"{{ url: nats://edge:link@127.0.0.1:{port}, account: EDGE }}"
        hub = _config("hub", "CORE", f'listen: "127.0.0.1:{port}", {authorization}', eleven_tokens)
        leaf = _config("leaf", "EDGE", f"reconnect: 1, remotes: [{remote}]", eleven_tokens)
        self.hub, self.leaf = NatsServer(folder / "hub", hub), NatsServer(folder / "leaf", leaf)

    def start(self) -> None:
        self.hub.start()
        self.leaf.start()

    def stop(self) -> None:
        self.leaf.stop()
        self.hub.stop()

    def settings(self, server: str, domain: str | None = None, **more: Any) -> ConnectionSettings:
        """A connection to the server ``hub`` or ``leaf``."""
        values = {"user": "work", "password": "open", "shortest_ack_wait": 0.5, "ledger": "airflow", **more}
        return ConnectionSettings(servers={"hub": self.hub, "leaf": self.leaf}[server].url, domain=domain, **values)


def _config(name: str, account: str, leafnodes: str, eleven_tokens: bool) -> str:
    return f"""
server_name: {name}
jetstream {{ domain: {name} }}
{"feature_flags { js_ack_fc_v2: true }" if eleven_tokens else ""}
accounts {{ {account} {{ jetstream: enabled, {_USERS} }} }}
leafnodes {{ {leafnodes} }}
"""


async def contents(js: JetStream) -> dict[str, Any]:
    """The state of all streams and consumers in one domain, except for times and waiting pulls."""
    found: dict[str, Any] = {}
    for name in (await js.api("STREAM.NAMES"))["streams"] or ():
        state = (await js.stream(name).info()).state
        found[name] = state["messages"] if name.endswith("_reserve") else state  # the doctor writes its parts again
        for consumer in (await js.api(f"CONSUMER.LIST.{name}"))["consumers"] or ():
            sequences = [consumer[each][kind] for each in ("delivered", "ack_floor") for kind in _SEQUENCES]
            counts = [consumer[each] for each in ("num_ack_pending", "num_redelivered", "num_pending")]
            found[f"{name}.{consumer['name']}"] = sequences + counts
    return found


async def clear(js: JetStream) -> None:
    for name in (await js.api("STREAM.NAMES"))["streams"] or ():
        with suppress(ApiError):
            await js.stream(name).delete()
