# SPDX-License-Identifier: Apache-2.0
"""How the libraries of tables get to an object store with the interface of Amazon S3."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from jetstream_client.errors import InvalidValue
from jetstream_tables.errors import TableUnsuitable
from jetstream_tables.secrets import public

_ENDPOINT = ("endpoint", "endpoint_url", "endpoint_url_s3")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, repr=False)
class S3:
    """The address and the credentials of an object store, for :class:`jetstream_tables.DeltaTable` and
    :class:`jetstream_tables.IcebergTable`. They are in no message, and not in its representation.

    access_key_id:      default None, also of the next two: the credentials of the environment, such as
                        ``AWS_ACCESS_KEY_ID``, or those of the machine.
    secret_access_key:  belongs to ``access_key_id``.
    session_token:      belongs to temporary credentials.
    region:             such as ``eu-central-1``. Default None: that of the environment.
    endpoint:           the address of another server than Amazon's, such as ``https://minio.example.com``. It must
                        support conditional puts (``If-None-Match``) if it stores tables of Delta Lake.
    """

    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    region: str | None = None
    endpoint: str | None = None

    def __repr__(self) -> str:
        return f"S3(endpoint={public(self.endpoint)!r})" if self.endpoint else "S3()"

    def storage_options(self) -> dict[str, str]:
        """The options of delta-rs.

        Raises:
            InvalidValue: delta-rs would add a token of the environment, which belongs to another access key.
        """
        if self.access_key_id and not self.session_token and os.environ.get("AWS_SESSION_TOKEN"):
            remedy = "the environment has AWS_SESSION_TOKEN, which delta-rs would send with access_key_id; unset it"
            raise InvalidValue("session_token", None, remedy)
        plain = self.endpoint is not None and self.endpoint.startswith("http://")
        options = {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true" if plain else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def properties(self) -> dict[str, str]:
        """The properties of a catalog of pyiceberg."""
        properties = {
            "s3.access-key-id": self.access_key_id,
            "s3.secret-access-key": self.secret_access_key,
            "s3.session-token": self.session_token,
            "s3.region": self.region,
            "s3.endpoint": self.endpoint,
        }
        return {name: value for name, value in properties.items() if value is not None}


StorageOptions = Mapping[str, str] | S3
Given = StorageOptions | Callable[[], StorageOptions] | None
"""What a table is given: options, or a function that returns them, which is called when the table is used."""


def options_of(given: Given) -> dict[str, str] | None:
    """The options of delta-rs; None for those of the environment.

    Raises:
        TableUnsuitable: they turn conditional puts off.
    """
    options = given() if callable(given) else given
    found = options.storage_options() if isinstance(options, S3) else dict(options or {})
    for name, value in found.items():
        if _short(name) == "conditional_put" and value.lower() == "disabled":
            raise TableUnsuitable(
                f"storage option {name} is {value}, so two commits at once could overwrite each other; leave it out"
            )
    return found or None


def other_server(uri: str, options: Mapping[str, str] | None) -> str | None:
    """The address of the S3 server that has a table, if it is not Amazon's; None otherwise."""
    if urlsplit(uri).scheme not in {"s3", "s3a"}:
        return None
    given = {_short(name): value for name, value in (options or {}).items()}
    found = [given.get(name) or os.environ.get(f"AWS_{name.upper()}") for name in _ENDPOINT]
    endpoint = next(filter(None, found), None)
    host = urlsplit(endpoint).hostname if endpoint else None
    return None if endpoint is None or (host or "").endswith(_AMAZON) else endpoint


def _short(name: str) -> str:
    return name.lower().removeprefix("aws_")
