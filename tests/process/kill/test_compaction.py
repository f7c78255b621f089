"""A node that compacts and is killed at any moment keeps the newest of every key.

One producer writes keys over and over and notes what was confirmed. After each kill the log is
read whole: of each key nothing older than what was confirmed counts, every message without a key
is there, and offsets are where they were.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from goq.client import Client
from goq.errors import GoqError
from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess

ROUNDS = 4
SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))
_KEYS = 60
_SETTINGS = {"cleanup": "compact", "segment.bytes": "64KiB", "compaction.tombstone_retention": "0s"}


class Writer:
    """Publishes until it is told to end; what was confirmed, by key and by offset."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        self.keyless: dict[int, bytes] = {}
        self.count = 0
        self._client = client
        self._chance = chance
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        chance = self._chance
        while not self._is_over.is_set():
            key = b"key-%d" % chance.randrange(_KEYS) if chance.random() < 0.97 else None
            value: bytes | None = b"%d " % self.count + b"x" * chance.choice([10, 3000])
            if key is not None and chance.random() < 0.1:
                value = None
            try:
                stored = self._client.publish("t", value, key=key)
            except GoqError:
                if key is not None:  # whether it was stored is not known
                    self.newest.pop(key, None)
                continue
            self.count += 1
            if key is None:
                assert value is not None
                self.keyless[stored.id.offset] = value
            else:
                self.newest[key] = (stored.id.offset, value)

    def check(self, client: Client) -> None:
        found = list(client.read_log("t"))
        offsets = [message.offset for message in found]
        assert offsets == sorted(set(offsets))
        keyless = {m.offset: m.value for m in found if m.key is None}
        assert self.keyless.items() <= keyless.items()
        last = {m.key: m for m in found if m.key is not None}
        for key, (offset, value) in list(self.newest.items()):
            message = last.get(key)
            if value is None and message is None:
                continue  # its tombstone is gone, and all that was before it
            assert message is not None, key
            assert (message.offset, message.value) == (offset, value), key


def generations(folder: Path) -> int:
    return len(list(folder.glob("topics/t~*/0/messages/*.*.log")))


def test_the_newest_of_every_key_outlives_kills_in_the_middle_of_compaction(
    tmp_path: Path,
) -> None:
    chance = random.Random(SEED)
    with (
        NodeProcess(tmp_path / "data") as node,
        Client(node.url, timeout="5s", retries="20s") as client,
    ):
        client.create_topic("t", 1, _SETTINGS)
        writer = Writer(client, chance)
        writer.start()
        for _ in range(ROUNDS):
            count = writer.count
            eventually(lambda count=count: writer.count > count + 150, "messages are published")
            eventually(lambda: generations(node.folder), "segments are compacted")
            threading.Event().wait(chance.random() * 0.2)
            node.kill()
            node.start()
        writer.stop()
        try:
            writer.check(client)
        except AssertionError as error:
            error.add_note(f"to repeat: GOQ_KILL_SEED={SEED}")
            raise
        assert node.stop() == 0
    assert verify_data_dir(RealDisk(), tmp_path / "data").is_sound
    left = [p.name for p in (tmp_path / "data").glob("topics/t~*/0/messages/*.log*")]
    assert len({name[:20] for name in left}) == len(left)
