"""Raft: agreement of the nodes on one sequence of commands.

The library below is PySyncObj, in one exact version and with its faults fixed. Nothing outside this
package imports it. ``docs/internals/raft.md`` lists the guarantees and their reasons.

node           the Raft member that goq uses: proposals, membership changes, leadership transfer
driver         the Raft thread's event loop: settings, timing, status, ticks
codec          msgpack formats of messages and log commands
member         a member's id, address and disk
state_comparison  digests of the state: a member that differs from the leader notices it
pysyncobj      the hardened Raft core over PySyncObj
log            the journal on disk, its records, and snapshots
transport      authenticated connections between members
state_machine  the interface of the replicated state machine, and SQLite storage for one
"""
