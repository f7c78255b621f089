"""Many changes of partitions in one command, and where they may be proposed."""

from __future__ import annotations

from goq import limits
from goq.cluster.controller.runner import with_batches
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.command_codec import decode_command, encode_command
from goq.cluster.metadata.commands import (
    AlterInSync,
    ChangePartitions,
    CreateTopic,
    ElectLeader,
    FenceNode,
)
from goq.cluster.metadata.features import level_of
from goq.cluster.metadata.results import Accepted, Rejected
from goq.cluster.metadata.state import MetadataState
from tests.support.cluster.metadata.states import after, nodes


def shrinks(state: MetadataState) -> list[AlterInSync]:
    """Return commands by which every partition's leader is alone in sync."""
    topic = state.topics["t"]
    return [
        AlterInSync(
            "t",
            topic.topic_id,
            number,
            p.version,
            str(p.leader),
            p.leader_epoch,
            {str(p.leader): 1},
        )
        for number, p in enumerate(topic.partitions)
    ]


def test_each_change_of_many_is_accepted_or_skipped_by_itself() -> None:
    state = after(nodes(3), CreateTopic("t", 12, {}, 3))
    changes = shrinks(state)
    stale = changes[5]
    one_by_one = state
    for change in [*changes[:5], *changes[6:]]:
        one_by_one = after(one_by_one, change)
    first = apply(state, stale, 50).state
    together, result = apply(first, ChangePartitions((*changes, changes[0])), 51)
    assert isinstance(result, Accepted)
    assert result.value == 11
    assert [len(p.in_sync) for p in together.topics["t"].partitions] == [1] * 12
    assert [p.version for p in together.topics["t"].partitions] == [2] * 12
    assert one_by_one.topics["t"].partitions[4] == together.topics["t"].partitions[4]


def test_changes_that_are_all_outdated_change_nothing() -> None:
    state = after(nodes(3), CreateTopic("t", 3, {}, 3))
    command = ChangePartitions(tuple(shrinks(state)))
    state = after(state, command)
    again, result = apply(state, command, 60)
    assert isinstance(result, Rejected)
    assert result.code == "nothing_changed"
    assert again.topics == state.topics


def test_the_largest_command_fits() -> None:
    names = ["n" * limits.NAME_CHARS_MAX + str(number) for number in range(3)]
    change = AlterInSync("t" * 200, 2**53, 999, 2**40, names[0], 2**40, dict.fromkeys(names, 2**40))
    command = ChangePartitions((change,) * limits.PARTITION_CHANGES_MAX)
    assert decode_command(encode_command(command)) == command


def test_elections_of_one_pass_go_together() -> None:
    fence = FenceNode("n1", 1)
    elections = [ElectLeader("t", 1, number, 1, "n1") for number in range(450)]
    batched = with_batches([fence, *elections, fence, elections[0]])
    sizes = [len(c.changes) if isinstance(c, ChangePartitions) else 1 for c in batched]
    assert sizes == [1, 200, 200, 50, 1, 1]
    assert batched[-1] == elections[0]
    assert level_of(batched[1]) == 4
