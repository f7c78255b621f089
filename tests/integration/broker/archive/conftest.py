from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.s3_server import BUCKET, PROGRAM, S3Server, s3_server
from tests.support.storage.store_proxy import StoreProxy, store_proxy


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if not PROGRAM.exists():
        pytest.skip("there is no S3 server here")
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    with store_proxy(server.environment["AWS_ENDPOINT_URL"]) as running:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        yield running


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}"
