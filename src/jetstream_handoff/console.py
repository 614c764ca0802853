# SPDX-License-Identifier: Apache-2.0
"""The address of a web page about a claim, which a connection can name, for links from a task or an output."""

from urllib.parse import quote, urlsplit

from jetstream_client.errors import InvalidValue


def check_console(console: object) -> str:
    """Return the address of the console, or an empty string for None. Everybody who sees a task can see this address.

    console:  the configured address.

    Raises:
        InvalidValue: the value is not the address of a web page, contains a password, or has an unknown placeholder.
    """
    if console is None:
        return ""
    remedy = (
        "give an address such as https://nats.example.com/streams/{stream}?consumer={consumer}, without user and "
        "password, and with no placeholders other than {stream}, {consumer} and {claim}"
    )
    rest = console_page(str(console), "", "", "")
    try:
        parts = urlsplit(rest)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good or {"{", "}"}.intersection(rest):
        raise InvalidValue("console", "…", remedy)
    return str(console)


def console_page(console: str, stream: str, consumer: str, claim: str) -> str:
    """Return the address of the page about a stream, consumer and claim, or an empty string if ``console`` is empty.

    console:   the configured address.
    stream:    the name of the stream.
    consumer:  the name of the consumer.
    claim:     the id of the claim.
    """
    for name, value in (("{stream}", stream), ("{consumer}", consumer), ("{claim}", claim)):
        console = console.replace(name, quote(value, safe=""))
    return console
