from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.config.topic import TopicSettings
from goq.storage.disk import RealDisk
from tests.support.storage.logs import append, frame_of


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[PartitionLogs]:
    logs = open_logs(tmp_path, RealDisk(), TopicSettings())
    append(logs.messages, [frame_of([b"v"] * 10)], epoch=1)
    yield logs
    for log in logs:
        log.close()
