# SPDX-License-Identifier: Apache-2.0
"""The operator that writes a key of a key-value bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.payload import encoded
from airflow_nats_jetstream.template import absent, condition, templated, yes_or_no
from jetstream_client.errors import InvalidValue
from jetstream_client.stores.key_value import Key

if TYPE_CHECKING:
    from airflow.sdk import Context


_CREATE = "; give create=True to write a key that has no value"


class JetStreamPutKeyOperator(BaseOperator):
    """Write a key of a key-value bucket, with or without a condition on its last entry.

    bucket:        the name of the bucket, which must exist. (templated)
    key:           the name of the key. (templated)
    value:         the value: bytes, a string (written as UTF-8) or any other JSON value (written as JSON). (templated)
    create:        whether to write only if the key has no value: it never had one, or was deleted. Default False.
    revision:      write only if the key's last entry has this revision, for example the one that JetStreamKeySensor has
                   returned. Default None: whatever the revision is. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    The entry carries a name made of DAG, run, task, map index and value. A retry, or a clear of the task in the same
    run, recognises by it that the entry is stored, and succeeds, also if the server's answer was lost. If another
    client has written the key since then, the task with a condition recognises its entry only in the bucket's
    ``history``, and otherwise fails; without a condition, it writes the value again.

    Returns ``{"bucket", "key", "revision", "stored"}``: the revision of the entry, and whether this try stored it.
    ``dry_run`` prints the last revision, and whether the condition holds.

    Raises:
        InvalidValue: an invalid name, number or value, or both of ``create`` and ``revision``. Raised when the DAG is
            parsed, unless the value is templated. Also if the template in ``revision`` has no value.
        BucketNotFound: the bucket does not exist.
        KeyExists: with ``create``, the key has a value.
        WrongRevision: the key's last entry has another revision than ``revision``.
        ApiError: the server refuses the entry, for example because the bucket is full.
    """

    template_fields: Sequence[str] = ("bucket", "key", "value", "revision", "nats_conn_id")
    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)

    def __init__(
        self,
        *,
        bucket: str,
        key: str,
        value: Any,
        create: bool = False,
        revision: int | str | None = None,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.key = key
        self.value = value
        self.create = yes_or_no("create", create)
        self.revision = revision
        self._condition = revision
        self.nats_conn_id = nats_conn_id
        if not templated([bucket, key]):
            Key(bucket, key)
        if not templated(value):
            encoded("value", value)
        if self.create and not absent(revision):
            raise InvalidValue("revision", revision, "a key that is created has no revision; leave one of the two out")
        if not templated(revision):
            self._expected()

    @property
    def stream(self) -> str:
        """The name of the bucket's stream, for the link."""
        return f"KV_{self.bucket}"

    def execute(self, context: Context) -> dict[str, Any]:
        from jetstream_client.publish.ids import MessageIds

        key, value, expected = Key(self.bucket, self.key), encoded("value", self.value), self._expected()
        ti = context["ti"]
        scope = "/".join((ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index)))
        write_id = MessageIds(scope).next(key.subject, value)
        written = JetStreamHook(self.nats_conn_id).run(lambda js: key.put(js, value, write_id, expected=expected))
        said = "%s has the value, with revision %d" if written.stored else "%s had got the value before, revision %d"
        self.log.info(said, key, written.revision)
        return {"bucket": self.bucket, "key": self.key, **written._asdict()}

    def dry_run(self) -> None:
        """Print the key's last revision, and whether the condition holds."""
        key, expected = Key(self.bucket, self.key), self._expected()
        last = JetStreamHook(self.nats_conn_id).run(key.last)
        would = "would be written" if key.allows(last, expected) else "would be refused"
        self.log.info("%s: the last revision is %d, and the value %s", key, key.revision_of(last), would)

    def _expected(self) -> int | None:
        return 0 if self.create else condition("revision", self.revision, self._condition, 1, _CREATE)
