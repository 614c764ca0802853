"""Assets ``nats://server[:port]/stream[/subject]``: a stream, or those of its messages that a filter lets through.

The server stands for the whole cluster (always the same one of its names), as in the URIs of Airflow's other providers;
the consumer is not in it: who reads a stream does not make it another one.
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
_FORM = "an asset is nats://server[:port]/STREAM or nats://server[:port]/STREAM/subject.filter.>"
_OF_A_SUBJECT = "*>$!()',;:@&=+"  # what a path may hold as it is, and the two wildcards


def create_asset(
    *, server: str, stream: str, subject: str | None = None, extra: dict[str, Any] | None = None, **asset: Any
) -> Asset:
    """The asset of a stream; ``server`` is ``host`` or ``host:port``, ``asset`` are further fields as ``watchers``.

    Raises:
        InvalidValue: when the DAG is parsed.
    """
    from airflow.sdk import Asset

    check_stream_name(stream)
    path = quote(stream, safe=_OF_A_SUBJECT)
    if subject is not None:
        path += "/" + quote(check_filter(subject), safe=_OF_A_SUBJECT)
    return Asset(uri=f"nats://{server}/{path}", extra=extra, **asset)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """What Airflow calls for every asset of this scheme: the one spelling of its URI.

    Raises:
        InvalidValue: not such a URI.
    """
    try:
        host, port = uri.hostname, uri.port
    except ValueError:
        raise InvalidValue("uri", "nats://…", _FORM) from None
    if uri.username is not None or uri.password is not None:
        raise InvalidValue("uri", "nats://…@…", f"who connects is the connection's business: {_FORM}")
    if not host or "," in uri.netloc:
        raise InvalidValue("uri", "nats://…", f"name one server: {_FORM}")
    if uri.query or uri.fragment:
        raise InvalidValue("uri", "nats://…?…", f"no query: {_FORM}")
    names = [unquote(each) for each in uri.path.split("/")[1:]]
    if not 1 <= len(names) <= 2:
        raise InvalidValue("uri", "nats://…", _FORM)
    check_stream_name(names[0])
    if len(names) == 2:
        check_filter(names[1], "subject")
    path = "".join("/" + quote(each, safe=_OF_A_SUBJECT) for each in names)
    host = f"[{host}]" if ":" in host else host  # an IPv6 address
    return uri._replace(netloc=f"{host}:{port or _PORT}", path=path)
