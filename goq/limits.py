"""Every bound in goq, in one place. Units are last in the names.

Reaching a bound is a defined answer (413, 429, 431, 507 …), never growth of memory. A bound that
a user may set is a default in the configuration; these are the ones that hold always.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Names
NAME_CHARS_MAX: Final = 200
HEADER_NAME_BYTES_MAX: Final = 256
HEADERS_PER_MESSAGE_MAX: Final = 64
CONSUMER_NAME_CHARS_MAX: Final = 200
CLIENT_ID_CHARS_MAX: Final = 200
REASON_CHARS_MAX: Final = 1000
TENANT_NAME_BYTES_MAX: Final = 200
DEDUP_ID_BYTES_MAX: Final = 1000
TXN_ID_BYTES_MAX: Final = 500

# Messages and frames
KEY_BYTES_MAX: Final = 64 * KIB
VALUE_BYTES_MAX: Final = 8 * MIB
HEADERS_BYTES_MAX: Final = 64 * KIB
FRAME_BYTES_MAX: Final = 16 * MIB
FRAME_MESSAGES_MAX: Final = 65_536
TENANTS_PER_FRAME_MAX: Final = 65_535
LEFT_OUT_BYTES_MAX: Final = 64  # what a note of repetitions adds beyond what they took

# Topics
PARTITIONS_PER_TOPIC_MAX: Final = 1000
TOPICS_MAX: Final = 10_000
GROUPS_PER_TOPIC_MAX: Final = 10_000
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 4 * GIB
EVENT_SEGMENT_BYTES: Final = 4 * MIB
SPANS_BLOCK_BYTES: Final = 8 * KIB
SPANS_LOADED_MAX: Final = 32  # segments of a partition whose index of events is kept in memory
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
PRODUCER_BATCHES_REMEMBERED: Final = 5

# Storage
INDEX_INTERVAL_BYTES: Final = 8 * KIB
COLUMNS_BLOCK_BYTES: Final = MIB
CHECKPOINT_INTERVAL_BYTES: Final = 16 * MIB
READ_CHUNK_BYTES: Final = 256 * KIB
OPEN_SEGMENTS_MAX: Final = 256
COMPACTION_KEYS_MAX: Final = 262_144  # in memory during a pass: about 40 MiB
COMMIT_BATCH_BYTES_MAX: Final = 8 * MIB
COMMIT_QUEUE_BYTES_MAX: Final = 64 * MIB
CONTROLLER_LOOK_MS: Final = 100  # between looks of the controller at who is late
RELAY_TIMEOUT_S: Final = 60.0  # until something comes from the node that was asked
RELAY_CONNECT_TIMEOUT_S: Final = 1.0
RELAY_CONNECTIONS_MAX: Final = 256  # with each other node
RELAY_PATIENCE_S: Final = 3.0  # while a partition has no leader
RELAY_PAUSE_S: Final = 0.05
ELSEWHERE_WAIT_MS: Final = 10_000  # for a leader to store what another node was given
NODE_HEARTBEAT_MS: Final = 200
IN_SYNC_LOOK_MS: Final = 200
REPLICA_SILENT_MS: Final = 10_000  # whom compaction does not wait for any more
CALL_TIMEOUT_MS: Final = 1_000
CALL_SESSIONS_MAX: Final = 1_000  # of other nodes with this one: one for each of their starts
CALL_CONNECTIONS_MAX: Final = 64  # with each other node
NOT_ENOUGH_REPLICAS_RETRY_MS: Final = 500
FETCH_BYTES_MAX: Final = 8 * MIB  # of frames in one answer to a follower
FETCH_LOG_BYTES_MAX: Final = 4 * MIB  # of one log; one frame may be larger
FETCH_WAIT_MS: Final = 500
FETCH_PARTITIONS_MAX: Final = 1_000  # in one answer
FIT_AGAIN_BYTES: Final = 8 * MIB  # of room that a node must have to lead again after a full disk
FIT_AGAIN_PAUSE_S: Final = 1.0  # between two looks whether it has
SCRUB_PAUSE_S: Final = 86_400.0  # between two looks at all that replicas have on the disk
SCRUB_BYTES_PER_S: Final = 8 * MIB  # read meanwhile
REPLICA_LAG_MS_MAX: Final = 2_000  # in sync is who had everything within this time
COMMIT_THREADS: Final = 8
FRAME_CACHE_BYTES: Final = 64 * MIB
STICKY_BYTES: Final = 64 * KIB
FSYNC_INTERVAL_MS: Final = 200
KEYS_PART_ENTRIES: Final = 2**20
KEYS_GROWING_ENTRIES_MAX: Final = 2**22
KEYS_MEMORY_BYTES: Final = 256 * MIB
KEYS_WAITING_MAX: Final = 10_000  # sealed segments whose files are still to be made
ARCHIVE_CHUNK_BYTES: Final = 128 * MIB  # what is compressed in one, with a window as large
ARCHIVE_CACHE_BYTES: Final = 128 * MIB  # one stretch is held however large
ARCHIVE_CACHE_FOOTERS: Final = 4096
ARCHIVE_READ_THREADS: Final = 2
ARCHIVE_ROWS_MAX: Final = 10_000  # that another node is told of in one answer

# Delivery
RECEIVE_MESSAGES_MAX: Final = 10_000
RECEIVE_BYTES_MAX: Final = 8 * MIB
RECEIPTS_PER_REQUEST_MAX: Final = 10_000
WAIT_MS_MAX: Final = 60_000
VISIBILITY_MS_MAX: Final = 12 * 3_600_000
NACK_DELAY_MS_MAX: Final = 365 * 86_400_000
ATTEMPTS_MAX: Final = 1000
BACKOFF_MS_MAX: Final = 7 * 86_400_000
DELAY_MS_MAX: Final = 100 * 365 * 86_400_000
TTL_MS_MAX: Final = 100 * 365 * 86_400_000
TIME_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of the year 9999
CLOCK_SLACK_MS: Final = 60_000
LANES_MAX: Final = 256
TENANT_WEIGHTS_MAX: Final = 10_000
TENANT_WEIGHT_MIN: Final = 0.001
TENANT_WEIGHT_MAX: Final = 1000.0
TENANTS_PER_PARTITION_MAX: Final = 1_000_000
LANE_WEIGHT_MAX: Final = 1000
READY_TIME_STEP_MS: Final = 100
READY_TIMES_MAX: Final = 4096
TENANT_IN_FLIGHT_MAX: Final = 1_000_000
DEDUP_WINDOW_MS_MAX: Final = 30 * 86_400_000
WAITERS_PER_GROUP_MAX: Final = 10_000
HELD_MESSAGES_MAX: Final = 100_000
RUNS_PASSED_BY_MAX: Final = 10_000
FAILURES_REMEMBERED_MAX: Final = 10
MARKS_PER_PARTITION_MAX: Final = 100_000
REDRIVES_MAX: Final = 10
REDRIVE_MESSAGES_MAX: Final = 10_000
DEAD_LETTERS_SCANNED_MAX: Final = 50_000
DEAD_LETTERS_SCANNED_BYTES_MAX: Final = 64 * MIB
DEAD_HISTORY_BYTES_MAX: Final = 16 * KIB
DEAD_LIVES_REMEMBERED: Final = 10
DEPARTURE_FRAME_BYTES: Final = 4 * MIB
DEPARTURE_FRAME_MESSAGES: Final = 2_000
STREAM_IN_FLIGHT_MESSAGES_MAX: Final = 1_000_000
SNAPSHOT_EVENTS_MIN: Final = 1000
SNAPSHOT_EVENTS_MAX: Final = 5000
SCHEDULE_HORIZON_MS: Final = 3_600_000

# Members of groups
MEMBERS_PER_GROUP_MAX: Final = 2_000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60_000
REBALANCES_REMEMBERED: Final = 50
REBALANCE_MOVES_REMEMBERED: Final = 2_000

# Cluster
CLUSTER_NODES_MAX: Final = 32
CLUSTER_PARTITIONS_MAX: Final = 20_000
REPLICAS_MAX: Final = 7
METADATA_TEXT_CHARS_MAX: Final = 500  # a name, an address, a reason
METADATA_COMMAND_BYTES_MAX: Final = 256 * KIB
NODE_SESSION_TIMEOUT_MS: Final = 1_000
HAND_OVER_TIMEOUT_MS: Final = 3_000  # for others to lead what a node leads that is stopped
QUIET_TIMEOUT_MS: Final = 1_000  # for what such a node has taken to become safe, before
PREFERRED_LEADER_DELAY_MS: Final = 10_000  # how long a node is up before leaderships come back
CONTROLLER_COMMANDS_MAX: Final = 200  # proposed by one look at the state
MOVES_AT_ONCE_MAX: Final = 1_000
MOVES_PLANNED_MAX: Final = 500  # by one rebalance
MOVE_BYTES_PER_S_MAX: Final = 2**40
MOVE_PIECE_BYTES_MIN: Final = 64 * KIB  # sent at once to a replica in the making, at least

# HTTP
CONNECTIONS_MAX: Final = 20_000
TARGET_BYTES_MAX: Final = 8 * KIB
HTTP_HEADERS_BYTES_MAX: Final = 32 * KIB
HTTP_HEADERS_MAX: Final = 100
BODY_BYTES_MAX: Final = 32 * MIB
BODIES_IN_FLIGHT_BYTES_MAX: Final = 256 * MIB
PIPELINE_REQUESTS_MAX: Final = 32
JSON_MESSAGES_PER_REQUEST_MAX: Final = 10_000
HEADER_TIMEOUT_MS: Final = 10_000
BODY_TIMEOUT_MS: Final = 60_000
IDLE_TIMEOUT_MS: Final = 120_000
WRITE_TIMEOUT_MS: Final = 60_000
DRAIN_TIMEOUT_MS: Final = 8_000
HEARTBEAT_MS: Final = 15_000

# Reading
READ_MESSAGES_MAX: Final = 10_000
READ_BYTES_MAX: Final = 8 * MIB
READ_BULK_MESSAGES_MAX: Final = 131_072  # where a reader of frames bounds their bytes
ROWS_UNPACKED_BYTES: Final = 32 * MIB  # of frames that become rows at once
TIME_SCAN_BYTES_MAX: Final = 64 * MIB
FRAME_SCAN_COST_BYTES: Final = 4 * KIB  # what looking at a frame costs beside its bytes
BACKGROUND_READS_WAITING_MAX: Final = 32
BACKGROUND_PIECE_BYTES: Final = MIB
BACKGROUND_JSON_MESSAGES: Final = 500
PEEK_SCANNED_MESSAGES_MAX: Final = 50_000
SCHEDULED_MESSAGES_MAX: Final = 1_000
FIND_MESSAGES_MAX: Final = 100
FIND_CANDIDATES_MAX: Final = 10_000
FIND_SCANNED_MESSAGES_MAX: Final = 500_000
FIND_SCANNED_BYTES_MAX: Final = 256 * MIB
FINDS_AT_ONCE_MAX: Final = 2
FINDS_WAITING_MAX: Final = 32
TRACE_COPIES_MAX: Final = 32
TRACE_WATCHES_MAX: Final = 10_000
HISTORY_DAYS_MAX: Final = 366

# Raft: what the nodes of a cluster agree on
RAFT_COMMAND_BYTES_MAX: Final = MIB
RAFT_COMMANDS_WAITING_MAX: Final = 1_000  # of one node; fewer than are remembered of a proposer
RAFT_REQUESTS_REMEMBERED: Final = 1_024  # of each proposer, to refuse what comes twice
RAFT_PROPOSERS_REMEMBERED: Final = 1_024
RAFT_RESULT_BYTES_MAX: Final = 4 * KIB  # a larger result is not remembered for a retry
RAFT_MEMBERS_MAX: Final = 64
RAFT_MEMBER_CHARS_MAX: Final = 300
RAFT_JOURNAL_BYTES: Final = 32 * MIB  # trimmed from here on, also when it holds few entries
RAFT_JOURNAL_BYTES_MAX: Final = 256 * MIB  # no new commands from here on
RAFT_RECORD_BYTES_MAX: Final = 2 * MIB
RAFT_IN_FLIGHT_ENTRIES_MAX: Final = 4_096  # sent to a follower and not answered yet
RAFT_BATCH_ENTRIES_MAX: Final = 1_024
RAFT_SNAPSHOT_BYTES_MAX: Final = 4 * GIB
RAFT_SNAPSHOT_IDLE_S: Final = 10.0  # after this a transfer that stands still is given up
RAFT_MESSAGE_BYTES_MAX: Final = 4 * MIB
RAFT_SEND_BUFFER_BYTES_MAX: Final = 16 * MIB  # waiting to be sent to one member
RAFT_HANDSHAKES_MAX: Final = 64  # connections that have not said yet who they are
RAFT_HANDSHAKE_TIMEOUT_S: Final = 3.0
RAFT_STRANGER_SEEN_S: Final = 10.0  # a member with another disk that does not come again is gone
RAFT_SECRET_BYTES_MIN: Final = 16
