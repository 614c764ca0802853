# SPDX-License-Identifier: Apache-2.0
"""Assets ``nats://server[:port]/stream[/subject]``: a stream, or the messages of a stream that match a filter.

As in the URIs of Airflow's other providers, the URI names one server of a cluster. Always use the same server name,
because another name makes another asset. The URI does not contain the consumer, because the asset is the same whichever
consumer reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_filter, check_stream_name

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.sdk import Asset

_PORT = 4222
_FORM = "give nats://server[:port]/STREAM or nats://server[:port]/STREAM/subject.filter.>"
_OF_A_SUBJECT = "*>$!()',;:@&=+"  # characters that a path may contain unquoted, and the two wildcards


def create_asset(
    *, server: str, stream: str, subject: str | None = None, extra: dict[str, Any] | None = None, **asset: Any
) -> Asset:
    """Return the asset of a stream.

    server:   the server as ``host`` or ``host:port``. Default port 4222.
    stream:   the name of the stream.
    subject:  a subject filter, for the messages that match it. Default None: all messages of the stream.
    extra:    the asset's ``extra``. Default None.
    asset:    other fields of the asset, such as ``name`` and ``watchers``.

    Raises:
        InvalidValue: a name or subject that JetStream forbids. Raised when the DAG is parsed.
    """
    from airflow.sdk import Asset

    check_stream_name(stream)
    path = quote(stream, safe=_OF_A_SUBJECT)
    if subject is not None:
        path += "/" + quote(check_filter(subject), safe=_OF_A_SUBJECT)
    return Asset(uri=f"nats://{server}/{path}", extra=extra, **asset)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the normal form of an asset's URI. Airflow calls this for every asset with the scheme ``nats``.

    uri:  the URI of the asset, split.

    Raises:
        InvalidValue: the URI does not have the form ``nats://server[:port]/stream[/subject]``.
    """
    try:
        host, port = uri.hostname, uri.port
    except ValueError:
        raise InvalidValue(
            "uri", "nats://…", f"an asset names exactly one server, whose port must be valid; {_FORM}"
        ) from None
    if uri.username is not None or uri.password is not None:
        raise InvalidValue("uri", "nats://…@…", f"user and password belong in the Airflow connection; {_FORM}")
    if not host or "," in uri.netloc:
        raise InvalidValue("uri", "nats://…", f"an asset names exactly one server; {_FORM}")
    if uri.query or uri.fragment:
        raise InvalidValue("uri", "nats://…?…", f"a query or fragment is not allowed; {_FORM}")
    names = [unquote(each) for each in uri.path.split("/")[1:]]
    if not 1 <= len(names) <= 2:
        raise InvalidValue("uri", "nats://…", f"the path must name a stream, or a stream and a subject; {_FORM}")
    check_stream_name(names[0])
    if len(names) == 2:
        check_filter(names[1], "subject")
    path = "".join("/" + quote(each, safe=_OF_A_SUBJECT) for each in names)
    host = f"[{host}]" if ":" in host else host  # an IPv6 address
    return uri._replace(netloc=f"{host}:{port or _PORT}", path=path)
