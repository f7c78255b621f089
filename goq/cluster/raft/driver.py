"""Driver of a Raft member on the event loop of its own thread.

The driver ticks the core when its next timer is due, and soon after a message or command arrives.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import msgspec
from pysyncobj import SyncObjConf

from goq import limits
from goq.cluster.raft.log.journal import FILE_NAME
from goq.cluster.raft.member import RaftMember, sorted_members
from goq.cluster.raft.pysyncobj.core import now_s
from goq.cluster.raft.pysyncobj.hardened_sync_obj import Callback, HardenedSyncObj
from goq.cluster.raft.state_machine.state_machine import (
    AppliedEntry,
    RecordingStateMachine,
    StateMachine,
)
from goq.cluster.raft.transport.link import Credentials
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.cluster.raft.transport.transport import ConnectionTiming, SecureTransport
from goq.errors import StorageFull
from goq.storage.disk import Disk


class RaftTiming(msgspec.Struct, frozen=True):
    """Timeouts of the Raft member in seconds, and sizes of its log and messages.

    A follower without a heartbeat for ``election_min_s`` to ``election_max_s`` starts an election.
    A leader that reaches no majority for ``fallback_s`` steps down. A log of more than
    ``log_entries`` entries is trimmed to half of that.
    """

    heartbeat_s: float = 0.13
    election_min_s: float = 0.4
    election_max_s: float = 0.8
    fallback_s: float = 1.0
    log_entries: int = 20_000
    batch_bytes: int = 64 * limits.KIB
    chunk_bytes: int = 256 * limits.KIB

    def conf(self) -> SyncObjConf:
        """Return the library's configuration."""
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=self.heartbeat_s,
            raftMinTimeout=self.election_min_s,
            raftMaxTimeout=self.election_max_s,
            leaderFallbackTimeout=self.fallback_s,
            connectionTimeout=max(2.0, self.election_max_s),
            commandsWaitLeader=False,
            commandsQueueSize=2 * limits.RAFT_COMMANDS_WAITING_MAX,
            dynamicMembershipChange=True,
            useFork=False,
            logCompactionMinEntries=self.log_entries,
            logCompactionBatchSize=self.chunk_bytes,
            appendEntriesBatchSizeBytes=self.batch_bytes,
        )
        conf.validate()
        return conf


_RETRY_S = 0.1
_TICK_PAUSE_S_MAX = 1.0
_LATE_S = 0.2
_log = logging.getLogger(__name__)


class RaftSettings(msgspec.Struct, frozen=True):
    """Settings of a Raft member.

    ``member`` is this member, such as ``n1=10.0.0.1:9080``, with the address that the others dial;
    ``listen`` is where it listens. ``others`` are the other members; they count only in a new
    ``folder``. ``disk`` is the id of this member's disk. ``registered_disk_of`` returns the disk
    that another member is registered with in the state, empty if unknown; ``registered_disk_in``
    the member and the disk that a command registers, None for other commands. ``addresses_of``
    returns where a member may be besides its address in the log. All are called on the Raft thread.
    """

    member: str
    listen: tuple[str, int]
    folder: Path
    credentials: Credentials
    others: tuple[str, ...] = ()
    timing: RaftTiming = msgspec.field(default_factory=RaftTiming)
    pace: ConnectionTiming = msgspec.field(default_factory=ConnectionTiming)
    disk: str = ""
    registered_disk_of: Callable[[str], str] = lambda _id: ""
    registered_disk_in: Callable[[Any], tuple[str, str] | None] = lambda _command: None
    addresses_of: Callable[[str], Iterable[str]] = lambda _id: ()


class RaftStatus(msgspec.Struct, frozen=True):
    """The state of the Raft group as this member knows it: its leader may be deposed already.

    ``failure`` is why this member has stopped, if it has. ``rejected_members`` came with another
    disk than they are registered with. ``rejected_by`` are members that reject this one for that
    reason. ``has_diverged`` says that this member's state contradicts the leader's, whose snapshot
    it waits for. ``reachable`` are the members that answered this leader lately, see
    ``HardenedSyncObj.reachable_members``.
    ``unconnected`` are those without a connection for ``limits.RAFT_UNCONNECTED_S``.
    ``other_secret`` are members that have another secret than this one. ``in_touch_s`` is the
    latest time when this member heard its leader, or led and heard a majority. ``lease_began_s`` is
    when its lease as the leader began, and ``silent_before_s`` how long before its election those
    of former leaders had begun, at the least; see ``election.py``. Times are the Raft core's: its
    clock is not that of an event loop, and the two drift apart by seconds in days.
    """

    leader: str | None = None
    is_leader: bool = False
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    members: tuple[str, ...] = ()
    has_quorum: bool = False
    failure: str | None = None
    rejected_members: tuple[str, ...] = ()
    rejected_by: tuple[str, ...] = ()
    has_diverged: bool = False
    reachable: frozenset[str] = frozenset()
    unconnected: frozenset[str] = frozenset()
    other_secret: tuple[str, ...] = ()
    in_touch_s: float | None = None
    lease_began_s: float = -math.inf
    silent_before_s: float = 0.0


class Driver:
    """The part of a member that lives on the Raft thread; its methods are called there.

    :meth:`on_owner_alive` is called on any thread.

    ``on_status_change`` is called when the leader, the term or the members change, or the member
    fails; ``on_applied`` with the applied entries, in order. Neither may raise or block.
    """

    def __init__(
        self,
        settings: RaftSettings,
        machine: StateMachine,
        *,
        disk: Disk,
        random: Random,
        on_status_change: Callable[[RaftStatus], None],
        on_applied: Callable[[list[AppliedEntry]], None],
    ) -> None:
        self.status = RaftStatus()
        self._settings = settings
        self._machine = RecordingStateMachine(machine)
        self._disk = disk
        self._random = random
        self._on_status_change = on_status_change
        self._on_applied = on_applied
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._ticked_s = -math.inf
        self._tick_scheduled = False
        self._is_disk_full = False
        self._missing_since_s: dict[str, float] = {}
        self._owner_seen_s = monotonic()
        self._raft: HardenedSyncObj | None = None
        self._transport: SecureTransport | None = None
        is_new = FILE_NAME not in disk.names(settings.folder)
        self._identity = PeerIdentity(settings.disk, self._registered_disk_of, is_new=is_new)

    async def start(self) -> None:
        """Open the folder, listen, and start to tick."""
        settings = self._settings
        self._raft = HardenedSyncObj(
            settings.member,
            list(settings.others),
            settings.timing.conf(),
            disk=self._disk,
            folder=settings.folder,
            machine=self._machine,
            transport_class=self._create_transport,
            request_ids=self._random,
        )
        assert self._transport is not None
        try:
            await self._transport.start()
        except OSError:
            self.stop()
            raise
        self._tick()

    def stop(self) -> None:
        """Close everything; nothing is applied afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        if self._raft is not None:
            raft, self._raft = self._raft, None
            raft.destroy()

    def submit(self, kind: int, body: bytes, callback: Callback) -> None:
        """Append a command to the log; see ``HardenedSyncObj.submit``."""
        if self._raft is not None:
            self._raft.submit(kind, body, callback)
            self._schedule_tick()

    def learn_members(self, index: int, members: list[str]) -> None:
        """Use these members until the log is at this index; see ``_SyncObj.learn_members``."""
        if self._raft is not None:
            self._raft.learn_members(index, members)

    def on_owner_alive(self) -> None:
        """Note that the application's event loop runs; it calls this on its own thread.

        So the time is not asked of this thread's loop, which is not made for other threads.
        """
        self._owner_seen_s = monotonic()

    def _give_lead_away_if_owner_stands(self, raft: HardenedSyncObj) -> None:
        """Transfer the lead while the application's event loop stands still here."""
        silent_s = monotonic() - self._owner_seen_s
        if silent_s < limits.RAFT_OWNER_SILENT_S or not raft._isLeader():
            return
        _log.error("this node stood still for %.1f s; another node is to lead", silent_s)
        self._owner_seen_s = monotonic()  # not with every tick
        raft.transferLeadership(None, lambda _result, _reason: None)

    def transfer_leadership(self, to: str | None, callback: Callback) -> None:
        """Transfer the leadership, to the most advanced member if none is named."""
        if self._raft is not None:
            self._raft.transferLeadership(None if to is None else RaftMember(to), callback)

    def _registered_disk_of(self, member: str) -> str:
        """Return the disk that a member is registered with, in the state or later in the log.

        After a power cut the state may be behind the log, and the registration not applied.
        """
        known = self._settings.registered_disk_of(member)
        if known or self._raft is None:
            return known
        for command in self._raft.unapplied_commands():
            registered = self._settings.registered_disk_in(command)
            if registered is not None and registered[0] == member:
                known = registered[1]
        return known

    def _create_transport(
        self, raft: object, member: RaftMember, others: set[RaftMember]
    ) -> SecureTransport:
        self._transport = SecureTransport(
            raft,
            member,
            others,
            listen=self._settings.listen,
            credentials=self._settings.credentials,
            on_message=self._on_message,
            random=self._random,
            pace=self._settings.pace,
            identity=self._identity,
            addresses_of=self._settings.addresses_of,
        )
        return self._transport

    def _on_message(self) -> None:
        """Tick soon, unless the message changed nothing, as heartbeats and their answers at rest.

        Then what else has changed is told with the first message after ``_TICK_PAUSE_S_MAX``.
        """
        raft = self._raft
        is_due = self._loop.time() - self._ticked_s >= _TICK_PAUSE_S_MAX
        if raft is None or is_due or not (self._is_known(raft) and raft.is_at_rest()):
            self._schedule_tick()
            return
        if raft.is_in_touch:
            self.status = msgspec.structs.replace(
                self.status, in_touch_s=now_s(), lease_began_s=raft.lease_began_s()
            )
        if not self.status.is_leader:
            self._arm(raft.tick_due_in_s())  # it stands later, as it heard its leader

    def _is_known(self, raft: HardenedSyncObj) -> bool:
        """Whether the status tells of leader, term and state: a snapshot changes the last two."""
        now = raft.leader_id, raft.raftCurrentTerm, raft.raftLastApplied, raft.has_diverged
        known = self.status
        return now == (known.leader, known.term, known.applied_index, known.has_diverged)

    def _schedule_tick(self) -> None:
        """Tick once the event loop has handled all received data."""
        if not self._tick_scheduled:
            self._tick_scheduled = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_scheduled = False
        self._ticked_s = self._loop.time()
        raft = self._raft
        if raft is None:
            return
        wait_s = _RETRY_S
        try:
            raft.doTick(0.0)
            self._give_lead_away_if_owner_stands(raft)
            wait_s = raft.tick_due_in_s()
            self._is_disk_full = False
        except StorageFull as error:
            if not self._is_disk_full:  # log it once, not with each retry
                _log.error("the cluster's log waits for disk space: %s", error.detail)
            self._is_disk_full = True
        except Exception as error:
            if raft.failure is not None:
                self._fail(error)
                return
            _log.exception("a tick of the Raft node failed; it continues")
        self._publish(raft)
        self._arm(wait_s)

    def _arm(self, wait_s: float) -> None:
        """Tick after a time, and not when the last call said."""
        if self._timer is not None:
            self._timer.cancel()
        # Whole milliseconds: uvloop rounds, and a tick too early would be one more.
        wait_s = math.ceil(1000 * wait_s) / 1000
        due_s = self._loop.time() + wait_s
        self._timer = self._loop.call_later(wait_s, self._tick_when_read, due_s)

    def _tick_when_read(self, due_s: float) -> None:
        """Tick; after a pause of this thread only once it has read what has arrived meanwhile.

        The others were not silent in the pause, and the application's event loop may have stood
        still only because the whole process did.
        """
        if self._loop.time() - due_s < _LATE_S:
            self._tick()
            return
        self._owner_seen_s = monotonic()
        self._timer = self._loop.call_soon(self._loop.call_soon, self._tick)  # it reads in between

    def _publish(self, raft: HardenedSyncObj) -> None:
        if applied := self._machine.take_applied():
            self._on_applied(applied)
        before = self.status
        in_touch_s = now_s() if raft.is_in_touch else before.in_touch_s
        self.status = RaftStatus(
            raft.leader_id,
            raft._isLeader(),
            raft.raftCurrentTerm,
            raft.raftCommitIndex,
            raft.raftLastApplied,
            tuple(node.spec for node in sorted_members({*raft.otherNodes, raft.selfNode})),
            raft.hasQuorum,
            rejected_members=self._identity.mismatched(self._loop.time()),
            rejected_by=self._identity.rejected_by(self._loop.time()),
            has_diverged=raft.has_diverged,
            reachable=raft.reachable_members(),
            unconnected=self._unconnected(raft),
            other_secret=self._identity.other_secret(self._loop.time()),
            in_touch_s=in_touch_s,
            lease_began_s=raft.lease_began_s(),
            silent_before_s=raft.silent_before_s,
        )
        if _reported_fields(before) != _reported_fields(self.status):
            self._on_status_change(self.status)

    def _unconnected(self, raft: HardenedSyncObj) -> frozenset[str]:
        """Return the members that have had no connection for a while."""
        time_s, missing = self._loop.time(), raft.unconnected_members()
        if not missing:
            self._missing_since_s = {}
            return missing
        self._missing_since_s = {id_: self._missing_since_s.get(id_, time_s) for id_ in missing}
        return frozenset(
            id_
            for id_, since_s in self._missing_since_s.items()
            if time_s - since_s >= limits.RAFT_UNCONNECTED_S
        )

    def _fail(self, error: Exception) -> None:
        _log.critical("this member of the cluster stops: %s", error)
        self.stop()
        self.status = RaftStatus(members=self.status.members, failure=str(error))
        self._on_status_change(self.status)


def _reported_fields(status: RaftStatus) -> tuple[object, ...]:
    return (
        status.leader,
        status.is_leader,
        status.term,
        status.members,
        status.rejected_members,
        status.rejected_by,
        status.other_secret,
        status.has_diverged,
    )
