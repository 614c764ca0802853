# SPDX-License-Identifier: Apache-2.0
"""The sensor that waits for a key of a key-value bucket."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_nats_jetstream.compat import NEVER_EXPIRE, task_state
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.payload import encoded
from airflow_nats_jetstream.sensors.waiting import JetStreamSensor
from airflow_nats_jetstream.template import absent, check_rendered, condition, templated, yes_or_no
from airflow_nats_jetstream.triggers import JetStreamKeyTrigger
from jetstream_client.errors import BucketRecreated, InvalidValue, PermissionDenied
from jetstream_client.stores.key_value import Awaited, Key, digest_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class JetStreamKeySensor(JetStreamSensor):
    """Wait until a key of a key-value bucket exists, has changed, or has a certain value.

    A key that was deleted or purged, or whose value has expired, does not exist. The sensor watches the key: it reads
    the last entry, and then each entry as it is stored.

    bucket:        the name of the bucket, which must exist. (templated)
    key:           the name of the key, without wildcards. (templated)
    equals:        wait until the key has this value: bytes, a string (as UTF-8) or any other JSON value (as
                   JetStreamPutKeyOperator writes it). Default: not given. (templated)
    changed:       whether to wait for a value that is written after this sensor has begun. A retry, or a clear of the
                   task in the same run, still counts from the first try. Default False.
    after:         wait for a value with a revision higher than this number, for example the revision that another task
                   has returned. Default None. (templated)
    poke_interval: with ``deferrable=False``, the time between two requests: seconds or a ``timedelta``. Default 60 s.
    deferrable:    whether to watch the key in the triggerer (True, the default), or to request it in a worker (False),
                   in any ``mode``. If an entry fits already, the sensor ends in a worker in either case.
    timeout:       how long to wait: seconds or a ``timedelta``. Default: 7 days, as for every Airflow sensor.
    soft_fail:     whether the task is skipped instead of failed on a time-out; an error always fails it. Default False.
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    All other parameters are the parameters of every Airflow sensor. Without ``equals``, ``changed`` and ``after``, the
    sensor waits until the key exists. ``equals`` can be combined with one of the other two. In a bucket with a
    ``history`` of 1, a value that is replaced at once may not be seen.

    Returns ``{"bucket", "key", "revision"}``, with the revision of the entry that ended the wait.

    Raises:
        InvalidValue: an invalid name or number, or both of ``changed`` and ``after``. Raised when the DAG is parsed,
            unless the value is templated. Also if ``after`` is higher than every revision of the bucket, or if the
            template in ``after``, or the other task's output in ``equals``, has no value.
        BucketNotFound: the bucket does not exist, or was deleted. The sensor does not wait for it to be created.
        BucketRecreated: the bucket was deleted and created again while the sensor waited. With ``changed``, the next
            try counts from the new bucket.
        JetStreamError: another error while waiting.
        AirflowSensorTimeout: no entry fitted in time.
    """

    template_fields: Sequence[str] = ("bucket", "key", "equals", "after", "nats_conn_id")

    def __init__(
        self,
        *,
        bucket: str,
        key: str,
        equals: Any = None,
        changed: bool = False,
        after: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.key = key
        self.equals = equals
        self.changed = yes_or_no("changed", changed)
        self.after = after
        self._conditions = {"equals": equals, "after": after}
        if not templated([bucket, key]):
            Key(bucket, key)
        if not templated(after):
            self._after()
        if not templated(equals):
            self._digest()
        if self.changed and not absent(after):
            raise InvalidValue("after", after, "changed=True means after the beginning; leave one of the two out")

    @property
    def stream(self) -> str:
        """The name of the bucket's stream, for the link."""
        return f"KV_{self.bucket}"

    def execute(self, context: Context) -> Any:
        end = time.time() + self.timeout
        self._awaited = self._begin(context)
        if self.deferrable:
            with suppress(PermissionDenied):  # who may not request the key may be permitted to watch it
                if isinstance(met := self.poke(context), PokeReturnValue):
                    return met.xcom_value
            trigger = JetStreamKeyTrigger(self.nats_conn_id, asdict(self._awaited), end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        return super().execute(context)

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002
        revision = JetStreamHook(self.nats_conn_id).run(self._awaited.look)
        return False if revision is None else PokeReturnValue(is_done=True, xcom_value=self._result(revision))

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Continue after the trigger's ``event``: a revision, a time-out or an error."""
        self.check_event(event, f"no entry of {Key(self.bucket, self.key)} fitted within {self.timeout:g} s")
        return self._result(event["revision"])

    def _result(self, revision: int) -> dict[str, Any]:
        self.log.info("%s: the entry with revision %d fits", Key(self.bucket, self.key), revision)
        return {"bucket": self.bucket, "key": self.key, "revision": revision}

    def _begin(self, context: Context) -> Awaited:
        """Return what is awaited. The end of the bucket at the first try is kept in the task's state, because a retry
        must not miss what was written since then."""
        key, after, digest = Key(self.bucket, self.key), self._after(), self._digest()
        info = JetStreamHook(self.nats_conn_id).run(key.bucket_info)
        last = int(info.state["last_seq"])
        if after is not None and after > last:
            remedy = (
                f"the highest revision in bucket {self.bucket!r} is {last}; the bucket was created again, or this is "
                "the revision of a key in another one"
            )
            raise InvalidValue("after", after, remedy)
        what = Awaited(bucket=self.bucket, key=self.key, created=info.created, after=after or 0, digest=digest)
        if not self.changed:
            return what
        state, name = task_state(context), f"jetstream_revision_{self.bucket}_{digest_of(self.key.encode())[:16]}"
        begun = state.get(name)
        if begun is None:
            begun = {"created": info.created, "last": last}
            state.set(name, begun, retention=NEVER_EXPIRE)
        if begun["created"] != info.created:
            state.delete(name)  # so that the next try counts from the new bucket
            raise BucketRecreated(self.bucket)
        return replace(what, after=int(begun["last"]))

    def _after(self) -> int | None:
        return condition("after", self.after, self._conditions["after"], 0)

    def _digest(self) -> str | None:
        if self._conditions["equals"] is None:
            return None
        if self.equals is None:
            check_rendered("equals", None)
        return digest_of(encoded("equals", self.equals))
