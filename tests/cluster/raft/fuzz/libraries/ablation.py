"""The mends of the library, each of which can be taken out: without it, the fuzz must fail.

Each is put back to what the library does, as far as the rest still fits to it. Two mends are not
here, as the others leave them nothing to do in any seed that was tried: that answers of an earlier
term are not believed, and that requests passed on are not numbered from one in every life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.log import records
from goq.cluster.raft.log.journal import Journal
from goq.cluster.raft.log.records import Entry
from goq.cluster.raft.log.snapshots import Snapshots
from goq.cluster.raft.pysyncobj import follower as following
from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from goq.cluster.raft.state_machine.state_machine import StateMachine
from tests.cluster.raft.fuzz.libraries.library import Message, inside

Node = Any


@contextmanager
def _handler(name: str, handler: Callable[[Node, Any, Message], None]) -> Iterator[None]:
    with patch.dict(following._HANDLERS, {name: handler}):
        yield


def _sees(attribute: str, value: Any) -> AbstractContextManager[Any]:
    return patch.object(HardenedSyncObj, attribute, value)


def cuts_whatever_follows() -> AbstractContextManager[Any]:
    """Cut the log after the entry before a message's, also where it agrees."""

    def on_append(node: Node, sender: Any, message: Message) -> None:
        journal: Journal = inside(node, "raftLog")
        index = message["prevLogIdx"]
        previous = journal.at(index)
        if message["term"] >= node.raftCurrentTerm and previous is not None:
            same = previous.term == message["prevLogTerm"]
            ours = journal.at(index + 1)
            if same and ours is not None:
                theirs = message["entries"][0] if message["entries"] else None
                journal.add(*(Entry(bytes(theirs[0]), *theirs[1:]) if theirs else ours))
        _on_append(node, sender, message)

    _on_append = following._HANDLERS["append_entries"]
    return _handler("append_entries", on_append)


def commits_what_nobody_vouched_for() -> AbstractContextManager[Any]:
    """Take the leader's commit index for all entries here, verified or not."""
    verified = inside(HardenedSyncObj, "acknowledge")

    def all_verified(node: Node, sender: Any, message: Message, index: int) -> None:
        verified(node, sender, message, index)
        last: int = inside(node, "raftLog").last.index
        committed = max(node.raftCommitIndex, min(message["commit_index"], last))
        node._SyncObj__raftCommitIndex = committed

    return _sees("_SyncObj__acknowledge", all_verified)


def drops_the_log_after_a_snapshot() -> AbstractContextManager[Any]:
    """Clear the log at the start when the state does not begin where the log does."""
    adopt = HardenedSyncObj._adopt

    def adopt_anew(node: Node, journal: Journal, snapshots: Snapshots, applied_index: int) -> None:
        applied = journal.at(applied_index)
        if applied is not None and applied_index > journal.first.index:
            journal.reset(applied_index, applied.term, journal.members(applied_index))
        adopt(node, journal, snapshots, applied_index)

    return _sees("_adopt", adopt_anew)


@contextmanager
def goes_back_step_by_step() -> Iterator[None]:
    """Let a refusal ask for the entry before, and believe each of several under way."""
    on_answer = following._HANDLERS["next_node_idx"]
    answer = inside(HardenedSyncObj, "reply")

    def on_every_answer(node: Node, sender: Any, message: Message) -> None:
        on_answer(node, sender, message | {"round": node._rounds.get(sender, 0)})

    def answer_one_back(node: Node, message: Message, index: int, *, success: bool) -> Message:
        if not success:
            last: int = inside(node, "raftLog").last.index
            index = max(1, min(last + 1, message["prevLogIdx"]))
        return answer(node, message, index, success=success)

    with (
        _handler("next_node_idx", on_every_answer),
        _sees("_SyncObj__reply", answer_one_back),
    ):
        yield


@contextmanager
def goes_back_for_each_answer() -> Iterator[None]:
    """Send again from where each answer stands, and cut what a message does not contain."""
    on_answer = following._HANDLERS["next_node_idx"]

    def on_every_answer(node: Node, sender: Any, message: Message) -> None:
        on_answer(node, sender, message)
        if message["success"] and node._isLeader():
            inside(node, "raftNextIndex")[sender] = message["next_node_idx"]

    with cuts_whatever_follows(), _handler("next_node_idx", on_every_answer):
        yield


def stumbles_over_poison() -> AbstractContextManager[Any]:
    """Let an exception of the machine out, and try the command again for ever."""

    def apply(node: Node, entry: Entry) -> Any:
        if entry.command[0] != codec.REGULAR:
            return None
        machine: StateMachine = node._machine
        return machine.apply(codec.decode_proposal(entry.command), entry.index)

    return _sees("_SyncObj__apply", apply)


def syncs_nothing() -> AbstractContextManager[Any]:
    """Write, and never wait for the disk."""
    return patch("tests.support.storage.disk._SimulatedFile.sync", lambda _file: None)


def checks_nothing() -> AbstractContextManager[Any]:
    """Take every record for sound."""
    return patch.object(records, "_checksum", lambda _kind, _payload: 0)


def trusts_what_a_failed_sync_left() -> AbstractContextManager[Any]:
    """Only sync at the start what a process that ended had written, and write nothing anew."""
    settle = Journal._recover_tail
    return patch.object(
        Journal,
        "_recover_tail",
        lambda journal, data, _synced_bytes: settle(journal, data, len(data)),
    )


def gives_snapshots_up_for_nothing() -> AbstractContextManager[Any]:
    """Drop a snapshot on its way whenever the log is large."""
    try_compaction = inside(HardenedSyncObj, "tryLogCompaction")

    def drop_and_try(node: Node) -> None:
        journal: Journal = inside(node, "raftLog")
        if journal.size_bytes > 2 * limits.RAFT_JOURNAL_BYTES:
            node._snapshots.discard_outgoing()
        try_compaction(node)

    return _sees("_SyncObj__tryLogCompaction", drop_and_try)


ABLATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "cuts whatever follows": cuts_whatever_follows,
    "commits what nobody vouched for": commits_what_nobody_vouched_for,
    "drops the log after a snapshot": drops_the_log_after_a_snapshot,
    "goes back step by step": goes_back_step_by_step,
    "goes back for each answer": goes_back_for_each_answer,
    "stumbles over poison": stumbles_over_poison,
    "syncs nothing": syncs_nothing,
    "checks nothing": checks_nothing,
    "trusts what a failed sync left": trusts_what_a_failed_sync_left,
    "gives snapshots up for nothing": gives_snapshots_up_for_nothing,
}
