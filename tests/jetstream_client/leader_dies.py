"""`make leader`: kills the node that leads a consumer while it is consumed from. Takes half a minute."""

from pathlib import Path

from tests.jetstream_client.cluster import Cluster
from tests.jetstream_client.test_leader import consume


async def test_a_leader_that_dies_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        await consume(cluster, dies=True)
