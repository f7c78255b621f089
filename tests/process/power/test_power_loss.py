"""Whatever a power cut leaves of a data folder, a node on it keeps every promise.

A real ``goq serve`` is recorded while clients work on it. From the record come the folders that a
power cut may leave, by the model in ``tests/support/storage/power/volume.py``. A node starts on
each, and is checked by what its clients were told. ``GOQ_POWER_SEED`` gives other choices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.node.ports import reserved_port
from tests.support.paths import fast_folder
from tests.support.storage.power.crash_states import Everything, Nothing, crash_state, crash_states
from tests.support.storage.power.promises import PATIENCE_S, BrokenPromises
from tests.support.storage.power.record import COMPILER, build
from tests.support.storage.power.recorded_run import (
    DATA,
    ClusterOfOne,
    RecordedRun,
    record_recovery,
    record_run,
)
from tests.support.storage.power.volume import Volume, read_tree

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler: NO SYNC OF THE NODE IS TESTED"),
]

SEED = int(os.environ.get("GOQ_POWER_SEED") or 1)
ROUNDS = 16
STATES = 16
RECOVERIES = 1
STATES_OF_EACH = 6
MUTANT_PATIENCE_S = 1.0

LONG_RUNS = 5
LONG_ROUNDS = 60
LONG_STATES = 200
LONG_RECOVERIES = 10
LONG_STATES_OF_EACH = 10
CLUSTER_STATES = 100


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with fast_folder("goq-power-") as found:
        yield found


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return build(folder)


@pytest.fixture(scope="module")
def run(folder: Path, library: Path) -> RecordedRun:
    return record_run(folder / "run", library, SEED, ROUNDS)


def test_the_record_explains_every_byte_of_the_folder(run: RecordedRun) -> None:
    recorded, found = run.volume().whole(), read_tree(run.root)
    assert recorded.keys() == found.keys()
    differing = {path for path in found if found[path] != recorded[path]}
    assert {path for path in differing if not path.endswith("-shm")} == set()


def test_every_promise_is_kept_after_a_power_cut(run: RecordedRun, folder: Path) -> None:
    assert check_states(run, folder, SEED, STATES) == STATES


@pytest.mark.long
def test_every_promise_is_kept_after_a_second_power_cut_during_the_recovery(
    run: RecordedRun, library: Path, folder: Path
) -> None:
    check_recoveries(run, library, folder, SEED, RECOVERIES, STATES_OF_EACH)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_RUNS))
def test_every_promise_is_kept_after_many_power_cuts(number: int, library: Path) -> None:
    seed = 1000 * SEED + number
    with fast_folder("goq-power-") as folder:
        run = record_run(folder / "run", library, seed, LONG_ROUNDS)
        count = check_states(run, folder, seed, LONG_STATES)
        count += check_recoveries(run, library, folder, seed, LONG_RECOVERIES, LONG_STATES_OF_EACH)
    print(f"seed {seed}: {count} states of {len(run.entries)} calls")


@pytest.mark.long
def test_every_promise_is_kept_by_a_cluster_of_one_after_many_power_cuts(library: Path) -> None:
    with fast_folder("goq-power-") as folder, reserved_port() as port:
        cluster = ClusterOfOne(port, folder / "secret")
        run = record_run(folder / "run", library, SEED, ROUNDS, cluster)
        check_states(run, folder, SEED, CLUSTER_STATES)
        check_recoveries(run, library, folder, SEED, RECOVERIES, STATES_OF_EACH)


@pytest.mark.long
def test_promises_are_broken_by_a_cluster_of_one_that_never_syncs_its_raft_log(
    library: Path, folder: Path
) -> None:
    with reserved_port() as port:
        cluster = ClusterOfOne(port, folder / "secret")
        run = record_run(folder / "cluster", library, SEED, ROUNDS, cluster)
        check_moments(run, run.volume(), folder)
        volume = run.volume(drops=lambda path, _: "/cluster/journal" in path)
        with pytest.raises(BrokenPromises):
            check_moments(run, volume, folder, MUTANT_PATIENCE_S)


Drops = Callable[[str, bool], bool]
NEVER_SYNCED: dict[str, Drops] = {
    "a file": lambda _path, is_folder: not is_folder,
    "a folder": lambda _path, is_folder: is_folder,
    "a segment of messages": lambda path, _: "/messages/" in path and path.endswith(".log"),
    "a segment of events": lambda path, _: "/events/" in path and path.endswith(".log"),
    "node.db or a topic's settings": lambda path, is_folder: (
        "/node.db" in path or (not is_folder and "/topics/" in path and path.count("/") == 4)
    ),
    "an archived segment": lambda path, _: "/archive/" in path and path.endswith(".part"),
    "the folder of topics": lambda path, _: path == f"{DATA}/topics",
    "a folder of messages": lambda path, _: path.endswith("/messages"),
    "a folder of events": lambda path, _: path.endswith("/events"),
    "a folder of the archive": lambda path, is_folder: is_folder and "/archive" in path,
    "the data folder": lambda path, _: path == DATA,
    "the folder above the data folder": lambda path, _: path == str(Path(DATA).parent),
}


@pytest.mark.parametrize("name", NEVER_SYNCED)
def test_promises_are_broken_by_a_node_that_never_syncs(
    name: str, run: RecordedRun, folder: Path
) -> None:
    with pytest.raises(BrokenPromises):
        check_moments(run, run.volume(drops=NEVER_SYNCED[name]), folder, MUTANT_PATIENCE_S)


def test_promises_are_broken_by_a_node_that_answers_before_it_syncs(
    run: RecordedRun, folder: Path
) -> None:
    with pytest.raises(BrokenPromises):
        check_moments(run, run.volume(late=True), folder, MUTANT_PATIENCE_S)


def test_promises_are_kept_at_the_same_moments_by_a_node_that_syncs(
    run: RecordedRun, folder: Path
) -> None:
    check_moments(run, run.volume(), folder)


def test_a_killed_process_loses_nothing_even_without_syncs(run: RecordedRun, folder: Path) -> None:
    volume = run.volume(drops=lambda _path, _is_folder: True)
    state = crash_state(volume, volume.size, Everything, SEED)
    run.check(folder, state, run.history.at(volume, state.point))


def check_states(run: RecordedRun, folder: Path, seed: int, count: int) -> int:
    """Check crash states of a run; return how many."""
    volume = run.volume()
    for state in crash_states(volume, seed, count):
        run.check(folder, state, run.history.at(volume, state.point))
    return count


def check_recoveries(
    run: RecordedRun, library: Path, folder: Path, seed: int, count: int, of_each: int
) -> int:
    """Check crash states of nodes that recover from crash states; return how many."""
    volume = run.volume()
    states = list(crash_states(volume, seed + 1, count, first=volume.size // 4))
    for number, state in enumerate(states):
        recovery = record_recovery(run, folder / f"recovery-{number}", library, state)
        promises = run.history.at(volume, state.point)
        for second in crash_states(recovery.volume(), seed, of_each):
            try:
                recovery.check(folder, second, promises)
            except BrokenPromises as broken:
                raise BrokenPromises(f"after {state}, {broken}") from None
    return count * of_each


def check_moments(
    run: RecordedRun, volume: Volume, folder: Path, patience_s: float = PATIENCE_S
) -> None:
    """Check moments right after answers, with all lost that is not durable."""
    answers = [index + 1 for index, entry in enumerate(run.entries) if entry.kind == "N"]
    for share in (0.98, 0.7, 0.5, 0.3):
        state = crash_state(volume, answers[int(share * len(answers))], Nothing, SEED)
        promises = run.history.at(volume, state.point)
        run.check(folder, state, promises, patience_s)
