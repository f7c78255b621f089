"""A recorded run of a node, and nodes on what power cuts leave of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from goq.errors import GoqError
from tests.support.eventually import eventually
from tests.support.node.ports import HOST
from tests.support.node.running_node import running_node
from tests.support.storage.power.crash_states import CrashState
from tests.support.storage.power.history import History, Promises
from tests.support.storage.power.promises import PATIENCE_S, BrokenPromises, check
from tests.support.storage.power.record import Entry, Recorder, read_record
from tests.support.storage.power.volume import Tree, Volume, inodes, write_tree
from tests.support.storage.power.workload import RecordedNode, Workload

DATA = "srv/goq"
"""The data folder below the recorded one: ``goq`` makes both of its parts."""


class ClusterOfOne:
    """The settings of a node that is a whole cluster: its topics are in a Raft log."""

    def __init__(self, port: int, secret_file: Path) -> None:
        secret_file.write_text("00" * 32)
        secret_file.chmod(0o600)
        address = f"{HOST}:{port}"
        self.broker = {"node_id": "n1"}
        self.cluster = {
            "listen": address,
            "peers": f"n1={address}",
            "min_insync": "1",
            "secret_file": str(secret_file),
        }

    def arguments(self) -> list[str]:
        """Return the settings of both sections as the words of ``--set``."""
        return [
            f"{section}.{name}={value}"
            for section, settings in (("broker", self.broker), ("cluster", self.cluster))
            for name, value in settings.items()
        ]


@dataclass(slots=True)
class RecordedRun:
    """What a node did below ``root``, from the durable ``base`` on."""

    cluster: ClusterOfOne | None
    root: Path
    entries: list[Entry]
    history: History
    base: Tree
    base_inodes: dict[int, str]

    def volume(
        self,
        *,
        drops: Callable[[str, bool], bool] = lambda _path, _is_folder: False,
        late: bool = False,
    ) -> Volume:
        """Return the model of the filesystem; see :class:`Volume` for what syncs count."""
        return Volume(self.entries, self.root, self.base, self.base_inodes, drops=drops, late=late)

    def check(
        self,
        folder: Path,
        state: CrashState,
        promises: Promises,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Start a node on a crash state, and check it; raise ``BrokenPromises``."""
        place = folder / "state"
        shutil.rmtree(place, ignore_errors=True)
        write_tree(state.tree, place)
        own = self.cluster
        settings = {} if own is None else {"broker": own.broker, "cluster": own.cluster}
        try:
            with running_node(place / DATA, **settings) as node:
                ready = partial(node.request, "GET", "/readyz")
                eventually(lambda: ready().status == 200, "the node takes traffic")
                check(node, promises, patience_s)
        except BrokenPromises as broken:
            raise BrokenPromises(f"{state}: {broken}") from None
        except GoqError as error:
            raise BrokenPromises(f"{state}: the node does not start: {error}") from error


def record_run(
    folder: Path, library: Path, seed: int, rounds: int, cluster: ClusterOfOne | None = None
) -> RecordedRun:
    """Run the workload on a new node: killed at work, killed while it starts, stopped, killed."""
    chance = random.Random(seed)
    recorder = Recorder(library, folder / "disk", folder / "record")
    recorder.root.mkdir(parents=True)
    settings = [] if cluster is None else cluster.arguments()
    node = RecordedNode(recorder.root / DATA, recorder, settings)
    workload = Workload(node, seed)
    with node, workload.connections():
        workload.create_topics()
        workload.run(rounds, "killed", kill_after=chance.randrange(rounds // 2, rounds))
        node.launch()
        node.kill_after(chance.randrange(30_000))
        node.start()
        workload.run(rounds, "stopped")
        workload.settle_down()
        assert node.stop() == 0
        node.start()
        workload.run(2, "last")
        node.kill()
    entries = read_record(recorder.record)
    return RecordedRun(cluster, recorder.root, entries, workload.history, {}, {})


def record_recovery(
    run: RecordedRun, folder: Path, library: Path, state: CrashState
) -> RecordedRun:
    """Start a node on a crash state, and kill it when it is ready."""
    recorder = Recorder(library, folder / "disk", folder / "record")
    write_tree(state.tree, recorder.root)
    base_inodes = inodes(recorder.root)
    settings = [] if run.cluster is None else run.cluster.arguments()
    with RecordedNode(recorder.root / DATA, recorder, settings) as node:
        node.kill()
    entries = read_record(recorder.record)
    return RecordedRun(run.cluster, recorder.root, entries, History(), state.tree, base_inodes)
