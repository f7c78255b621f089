"""How fast the cluster notices things, and when it trims its log."""

from __future__ import annotations

from dataclasses import dataclass

from pysyncobj import SyncObjConf

from goq import limits


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A follower that hears no heartbeat for ``election_min_s`` to ``election_max_s``
    stands for election; a leader that hears no majority for ``fallback_s`` steps down.

    ``log_entries`` is how many entries the log may have before it is cut to half of that.
    """

    heartbeat_s: float = 0.1
    election_min_s: float = 0.4
    election_max_s: float = 0.8
    fallback_s: float = 1.0
    log_entries: int = 20_000
    batch_bytes: int = 64 * limits.KIB
    piece_bytes: int = 256 * limits.KIB

    def conf(self) -> SyncObjConf:
        """Return this as the library takes it."""
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
            logCompactionBatchSize=self.piece_bytes,
            appendEntriesBatchSizeBytes=self.batch_bytes,
        )
        conf.validate()
        return conf
