"""A real server of the S3 protocol in a folder, with one bucket, on free ports of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.eventually import eventually
from tests.support.node.ports import HOST, free_ports

PROGRAM = Path(sys.executable).with_name("weed")
BUCKET = "backups"
KEY, SECRET = "a-key", "a-secret"
START_S_MAX = 60


class S3Server:
    """The server, as the environment of programs names it."""

    def __init__(self, endpoint: str) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=10),
        )

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def has_bucket(self) -> bool:
        """Create the bucket; return whether there is one."""
        try:
            self.client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            return False
        return True


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server until the block ends."""
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    names = [f"{part}.port{kind}" for part in _PARTS for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [str(PROGRAM), "server", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}"]
    command += [
        "-filer",
        "-s3",
        f"-s3.config={folder / 'identities.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = S3Server(f"http://{HOST}:{ports['s3.port']}")
    try:
        eventually(server.has_bucket, seconds=START_S_MAX, pause_s=0.1)
        yield server
    finally:
        process.kill()
        process.wait()


_PARTS = ("master", "volume", "filer", "s3")
