"""Clients of the SQS-compatible endpoint: boto3, and raw requests of the JSON protocol."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

KEY_ID, SECRET = "goq", "goq"
TIMEOUT_S = 30


@contextmanager
def sqs_client(
    url: str, *, attempts: int = 1, key_id: str = KEY_ID, secret: str = SECRET
) -> Iterator[Any]:
    """Yield a boto3 client, which sends a request ``attempts`` times at most."""
    config = Config(
        retries={"total_max_attempts": attempts, "mode": "standard"},
        connect_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
    )
    client = boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=config,
    )
    try:
        yield client
    finally:
        client.close()


class RawAnswer(NamedTuple):
    """An answer as it is on the wire; ``headers`` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def code(self) -> str:
        """The code of an error for SDKs that know the query protocol."""
        return self.headers["x-amzn-query-error"].partition(";")[0]


def raw_request(
    url: str, body: bytes, headers: Mapping[str, str], path: str = "/", method: str = "POST"
) -> RawAnswer:
    """Send one request."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return RawAnswer(response.status, found, response.read())
    finally:
        connection.close()


def json_request(url: str, operation: str, body: object) -> RawAnswer:
    """Send one operation in the JSON protocol; bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": f"AmazonSQS.{operation}",
    }
    return raw_request(url, data, headers)
