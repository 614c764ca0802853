"""Options of the Spark data source as any session can set them."""

import json

from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import environment_name
from pyspark_jetstream.offsets import Time
from pyspark_jetstream.options import Options
from tests.hostile.attack import attack
from tests.hostile.test_claim import GOOD
from tests.hostile.values import DEEP, Texts, changed

Name = st.sampled_from(
    [
        "servers",
        "connection",
        "stream",
        "claim",
        "STREAM",
        "startingOffsets",
        "endingoffsets",
        "minPartitions",
        "subjects",
        "failOnDataLoss",
        "readMode",
    ]
)
Number = st.sampled_from(
    [
        "0",
        "-1",
        "1",
        "7",
        "1e3",
        " 1",
        "1_0",
        str(2**63),
        str(2**64),
        "9" * 5_000,
        "latest",
        "earliest",
        "²",
        "2026-11-21T03:00:00.1Z",
        "0001-01-01T00:00:00Z",
        "a.*,b.>",
    ]
)


@attack(
    st.dictionaries(Name | Texts | st.just("nats.password"), Texts | Number | st.just("nats://a:1"), max_size=6),
    st.sampled_from([{}, {"servers": "nats://a:1", "stream": "S"}, {"connection": "c", "stream": "S"}]),
    weight=2,
)
def test_any_options(given: dict[str, str], base: dict[str, str]) -> None:
    try:
        options = Options.parse(base | given)
    except InvalidValue:
        return
    assert bool(options.servers) != (options.connection is not None)
    assert options.stream
    for offset in (options.starting, options.ending):
        assert not isinstance(offset, int) or 1 <= offset < 2**63
        assert not isinstance(offset, Time) or offset.rfc3339
    assert options.min_partitions is None or 1 <= options.min_partitions <= 100_000


@attack(changed(GOOD).map(json.dumps) | st.just(DEEP.decode()) | st.text(max_size=20))
def test_any_claim(text: str) -> None:
    try:
        options = Options.parse({"servers": "nats://a:1", "claim": text})
    except InvalidValue:
        return
    assert options.claim


@attack(Texts)
def test_a_variables_name_is_one(connection: str) -> None:
    try:
        name = environment_name(connection)
    except InvalidValue:
        assert "@" in connection
        return
    assert "=" not in name
    assert "\x00" not in name
    name.encode()
