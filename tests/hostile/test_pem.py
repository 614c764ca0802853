"""Certificates, keys and ``.creds`` of any content: a result in linear time, and no error shows the content."""

import time

from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue
from jetstream_client.wire.credential import check_credentials, read_pem
from tests.hostile.attack import attack

SECRET = "hidden-5e2"
SEED = "SU" + "A" * 56
Piece = st.sampled_from(
    [
        *("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----", "-----BEGIN A"),
        *("-----BEGIN NATS USER JWT-----", "------END NATS USER JWT------", "-----BEGIN USER NKEY SEED-----"),
        *("-----END", "-----", "-", " ", "\n", "\r\n", "\t", "A", "A ", "AAAA", "+/=", ".", "_", "a.b.c", SEED, SECRET),
        *("\x00", "\ud800", "é", "\u2028", "²"),
    ]
)
Repeated = st.builds(lambda piece, times: piece * times, Piece, st.sampled_from([1, 1, 2, 5, 500, 5_000]))
Hostile = st.lists(Repeated, min_size=1, max_size=8).map(lambda pieces: "-----BEGIN" + "".join(pieces))
SLOW = 2.0
"""Seconds of processor time. The longest inputs have 2 million characters, each of which is read a few times."""


@attack(Hostile, st.sampled_from(["CERTIFICATE", "PRIVATE KEY"]))
def test_any_pem(text: str, kind: str) -> None:
    start = time.process_time()
    try:
        pem = read_pem("tls_ca", text, kind)
    except InvalidValue as error:
        assert SECRET not in str(error)  # noqa: PT017 - most cases end here
    else:
        assert f"{kind}-----" in pem
        assert pem.split() or not text.split()
        assert read_pem("tls_ca", pem, kind).split() == pem.split()
    assert time.process_time() - start < SLOW


@attack(Hostile)
def test_any_credentials(text: str) -> None:
    start = time.process_time()
    try:
        jwt, seed = check_credentials(text)
    except InvalidValue as error:
        assert SECRET not in str(error)  # noqa: PT017 - most cases end here
    else:
        assert seed == SEED
        assert jwt in text
    assert time.process_time() - start < SLOW
