"""The limits of goq. Units are last in the names.

A request over a limit gets a defined answer (413, 429, 431, 507 …); memory never grows without
bound. Limits that a user can set are in the configuration; the limits here always hold.
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
SESSION_ID_CHARS_MAX: Final = 64
REASON_CHARS_MAX: Final = 1000
TENANT_NAME_BYTES_MAX: Final = 200
DEDUP_ID_BYTES_MAX: Final = 1000
TXN_ID_BYTES_MAX: Final = 500
SINK_TOPICS_MAX: Final = 100  # that the rows of one task of Spark's sink name

# Messages and frames
KEY_BYTES_MAX: Final = 64 * KIB
VALUE_BYTES_MAX: Final = 8 * MIB
HEADERS_BYTES_MAX: Final = 64 * KIB
FRAME_BYTES_MAX: Final = 16 * MIB
FRAME_MESSAGES_MAX: Final = 65_536
TENANTS_PER_FRAME_MAX: Final = 65_535
LEFT_OUT_BYTES_MAX: Final = 64  # bytes that a note of duplicates adds beyond theirs

# Topics
PARTITIONS_PER_TOPIC_MAX: Final = 1000
TOPICS_MAX: Final = 10_000
PATTERN_TOPICS_MAX: Final = 100  # that one loop of a client reads; each has its connections
GROUPS_PER_TOPIC_MAX: Final = 10_000
STATE_BYTES_MAX: Final = GIB  # of all partitions and groups of a node, as they count below
PARTITION_BYTES: Final = 40 * KIB  # the memory of a partition without groups
GROUP_BYTES: Final = 4 * KIB  # the memory of a group in one partition
START_PARTITIONS: Final = 1_000  # opened before a node is ready; the others afterwards
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 4 * GIB
EVENT_SEGMENT_BYTES: Final = 4 * MIB
EVENT_INDEX_BLOCK_BYTES: Final = 8 * KIB
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
PRODUCER_BATCHES_REMEMBERED: Final = 5

# Storage
INDEX_INTERVAL_BYTES: Final = 8 * KIB
COLUMNS_BLOCK_BYTES: Final = MIB
CHECKPOINT_INTERVAL_BYTES: Final = 16 * MIB
JOURNAL_ENTRY_BYTES_MAX: Final = 128 * KIB  # a larger batch is synced in its segment
JOURNAL_INLINE_BYTES_MAX: Final = 64 * KIB  # a larger record is written by a thread
JOURNAL_STAGED_BYTES_MAX: Final = 32 * KIB  # of more, leases wait for the messages' record
JOURNAL_RECORD_BYTES_MAX: Final = 512 * KIB
JOURNAL_PIECE_BYTES_MIN: Final = MIB  # the first; each further one is twice as large
JOURNAL_PIECE_BYTES_MAX: Final = 16 * MIB
JOURNAL_PIECES_MAX: Final = 7
READ_CHUNK_BYTES: Final = 256 * KIB
READ_AT_ONCE_BYTES: Final = MIB  # by the event loop, of a file; larger pieces are read in a thread
OPEN_FILES_MAX: Final = 1_024  # descriptors of data files
OPEN_FILES_MIN: Final = 16
OPEN_FILES_SHARE: Final = 4  # of the descriptors that the process may open
OPEN_FILES_SPARE: Final = 512  # for SQLite, other nodes, folders, and connections being refused
COMPACTION_KEYS_MAX: Final = 262_144  # in memory during a pass: about 40 MiB
SHARED_FRAME_BYTES_MAX: Final = 64 * KIB  # of single messages that are written together
SHARED_FRAME_MESSAGES_MAX: Final = 1_000
COMMIT_BATCH_BYTES_MAX: Final = 8 * MIB
DEDUP_IDS_ADMITTED_AT_ONCE: Final = 2_048  # of a frame; a thread admits a larger one
COMMIT_BATCH_DEDUP_IDS_MAX: Final = 16_384  # of several frames; one alone may have more
COMMIT_QUEUE_BYTES_MAX: Final = 64 * MIB
CONTROLLER_INTERVAL_MS: Final = 100  # between the controller's checks of node sessions
FORWARD_TIMEOUT_S: Final = 70.0  # until the other node answers, which may wait WAIT_MS_MAX
FORWARD_CONNECT_TIMEOUT_S: Final = 1.0
FORWARD_CONNECTIONS_MAX: Final = 256  # with each other node, besides those of receives
FORWARD_CONNECTION_WAIT_S: Final = 3.0  # for one of them to be free
FORWARD_LEADER_WAIT_S: Final = 3.0  # for a partition without a leader to get one
FORWARD_RETRY_PAUSE_S: Final = 0.05
LINK_PROBE_MS: Final = 1_000  # between two probes of a link to another node
LINK_TIMEOUT_MS: Final = 1_000  # without an answer the other node is unreachable from here
LINK_LOST_GRACE_MS: Final = 500  # then a request that waits for such a node is answered
FENCED_GRACE_MS: Final = 200  # the same for a node that is fenced: another leads by then
LINK_REPORT_MS: Final = 1_000  # unreachable for so long, a node is reported to the controller
LINK_VIEW_AGE_MS: Final = 5_000  # older knowledge of other nodes' links does not count
REMOTE_STORE_WAIT_MS: Final = 10_000  # for a leader to store frames that another node received
QUORUM_WAIT_S: Final = 10.0  # for the replicas in sync to confirm a write; then it is unknown
METADATA_BARRIER_PAUSE_MS: Final = 20  # between barriers for requests that miss something
METADATA_BARRIER_TIMEOUT_MS: Final = 2_000  # then a node that misses something answers 503
LEASE_RETURN_AT_STOP_S: Final = 3.0  # for leases to be returned by a node that stops
LEASE_RETURN_S: Final = 10.0  # for a partition to get a leader that takes unused leases back
METADATA_SPREAD_TIMEOUT_MS: Final = 2_000  # of silence of a node that is to follow a change
METADATA_SPREAD_MS_MAX: Final = 10_000  # for a node that answers to follow a change
NODE_HEARTBEAT_MS: Final = 200
IN_SYNC_CHECK_MS: Final = 200
REPAIR_CHECK_MS: Final = 1_000  # between two checks of the replicas for damage
REPLICA_UNREACHABLE_MS: Final = 10_000  # compaction no longer waits for such a replica
RPC_TIMEOUT_MS: Final = 1_000
RPC_SESSIONS_MAX: Final = 1_000  # of other nodes with this one, one for each of their starts
RPC_CONNECTIONS_MAX: Final = 64  # with each other node
RPC_DIGEST_INLINE_BYTES_MAX: Final = 256 * KIB  # a thread computes that of a larger response
NOT_ENOUGH_REPLICAS_RETRY_MS: Final = 500
FETCH_BYTES_MAX: Final = 8 * MIB  # frames in one answer to a follower
FETCH_LOG_BYTES_MAX: Final = 4 * MIB  # from one log; a single frame may be larger
FETCH_TOGETHER_BYTES_MAX: Final = 256 * KIB  # larger pieces are stored one after the other
FETCH_WAIT_MS: Final = 500
FETCH_WAIT_RENEWED_MS: Final = 5_000  # of a session that is renewed over a stream
RECENT_BATCHES_BYTES_MAX: Final = 32 * MIB  # kept in memory for followers, of all logs led here
RECENT_LOG_BYTES_MAX: Final = 2 * MIB - 64 * KIB  # of one log: two of them fit a push
PUSH_BYTES_MAX: Final = 4 * MIB - 64 * KIB  # in one message of a stream, with PUSH_UPDATE_BYTES
PUSH_IN_FLIGHT_BYTES_MAX: Final = 4 * MIB  # to one follower, which has not stored them yet
PUSH_UPDATE_BYTES: Final = 512  # counted for each of them besides its frames
PUSH_STREAM_CHECK_S: Final = 0.5  # between two checks, dials and signs of life
PUSH_STREAM_IDLE_S: Final = 2.0  # without a sign of life the stream ends
STREAM_CALL_BYTES_MAX: Final = 64 * KIB  # larger calls go over HTTP
STREAM_ANSWER_MESSAGES_MAX: Final = 1_000  # the rest of a receive goes over HTTP
STREAM_ANSWER_BYTES_MAX: Final = MIB  # as above; a larger message comes alone, over HTTP
STREAM_ANSWERS_BYTES_MAX: Final = 8 * MIB  # that wait to be sent to one node
STREAM_CALLS_MAX: Final = 1_000  # that wait for their answers over one stream
STREAM_CALL_PATIENCE_S: Final = 0.3  # without an answer the next calls go over HTTP
PUSH_STREAM_REDIAL_S_MAX: Final = 1.0
PUSH_STREAM_PATIENCE_S: Final = 3.0  # without a stream the node with the larger id dials too
REST_CHECK_MS: Final = 5_000  # between two looks for removed segments of partitions at rest
FETCH_PARTITIONS_MAX: Final = 1_000  # in one answer
DISK_RECOVERED_BYTES: Final = 8 * MIB  # free space after which a leader's disk is no longer full
DISK_RESERVE_BYTES: Final = 8 * MIB  # given up for what a node with a full disk must write
DISK_RESERVE_BELOW_BYTES: Final = 4096 * MIB  # with more free there is no reserve yet
DISK_FULL_BYTES: Final = 256 * KIB  # with less free the disk counts as full
DISK_RESERVE_BELOW_FILES: Final = 10_000  # so it is with fewer free inodes
DISK_FULL_FILES: Final = 4  # with fewer free inodes the disk counts as full
DISK_LOW_BYTES: Final = 1024 * MIB  # with less free it is nearly full; at most 5 % of the disk
DISK_START_BYTES: Final = 2 * MIB  # with less free the reserve is given up for a start
DISK_SPACE_CHECK_S: Final = 2.0  # between two measurements of the free space
SMALL_FILE_BYTES_MAX: Final = 16 * KIB  # files that may replace another one on a full disk
SLOW_WRITE_S: Final = 1.0  # a write with its sync that is told
DISK_CHECK_PAUSE_S: Final = 1.0  # between two checks of that free space
SCRUB_PAUSE_S: Final = 86_400.0  # between two verifications of all replicas on the disk
SCRUB_BYTES_PER_S: Final = 8 * MIB  # the speed of that verification
REPLICA_LAG_MS_MAX: Final = 2_000  # a replica that lags longer leaves the in-sync set
COMMIT_THREADS: Final = 8
TOPIC_THREADS_MAX: Final = 4  # of them, at work for one topic at once
FRAME_CACHE_BYTES: Final = 64 * MIB  # of frames that a receive reads
STICKY_BYTES: Final = 64 * KIB
STICKY_S: Final = 0.1
FSYNC_INTERVAL_MS: Final = 200
KEYS_PART_ENTRIES: Final = 2**20
KEYS_ACTIVE_ENTRIES_MAX: Final = 2**22
KEYS_WAITING_MAX: Final = 10_000  # sealed segments without a key file yet
ARCHIVE_CHUNK_BYTES: Final = 128 * MIB  # compressed together, with a window as large
ARCHIVE_CACHE_BYTES: Final = 128 * MIB  # of decompressed chunks
ARCHIVE_CACHE_FOOTERS: Final = 4096  # of about 1 KiB
ARCHIVE_INDEXES_BYTES: Final = 16 * MIB  # of sparse indexes of archived segments
INDEX_CACHE_BYTES: Final = 172 * MIB  # of key and event indexes
CACHES_BYTES_MAX: Final = (  # 384 MiB for all caches of a node together
    FRAME_CACHE_BYTES
    + ARCHIVE_CACHE_BYTES
    + ARCHIVE_CACHE_FOOTERS * KIB
    + ARCHIVE_INDEXES_BYTES
    + INDEX_CACHE_BYTES
)
ARCHIVE_READ_THREADS: Final = 2
ARCHIVE_ROWS_MAX: Final = 10_000  # rows in one answer to another node

# Delivery
RECEIVE_MESSAGES_MAX: Final = 10_000
RECEIVE_BYTES_MAX: Final = 8 * MIB
RECEIPTS_PER_REQUEST_MAX: Final = 10_000
ACK_SEARCHES_MAX: Final = 64  # of a request and partition; the largest ack is up to 40 events
WAIT_MS_MAX: Final = 60_000
VISIBILITY_MS_MAX: Final = 12 * 3_600_000
NACK_DELAY_MS_MAX: Final = 365 * 86_400_000
ATTEMPTS_MAX: Final = 1000
BACKOFF_MS_MAX: Final = 7 * 86_400_000
DELAY_MS_MAX: Final = 100 * 365 * 86_400_000
TTL_MS_MAX: Final = 100 * 365 * 86_400_000
TIME_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of the year 9999
CLOCK_SLACK_MS: Final = 60_000
CLOCK_SKEW_WARN_MS: Final = 200  # a smaller difference of two clocks is tolerated
CLOCK_SKEW_UNFIT_MS: Final = 5_000  # beyond it a node does not lead
CLOCK_SAMPLES_MIN: Final = 3  # heartbeats, before a node's clock is judged
CLOCK_SAMPLES_MAX: Final = 8
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
RUNS_PASSED_MAX: Final = 10_000
EXPIRED_AT_ONCE: Final = 250  # messages of a lease that ends
SELECTION_STEPS_MAX: Final = 1_000  # messages or runs that one turn of a receive decides on
FAILURES_REMEMBERED_MAX: Final = 10
MARKS_PER_PARTITION_MAX: Final = 100_000
REDRIVES_MAX: Final = 10
REDRIVE_MESSAGES_MAX: Final = 10_000
DEAD_LETTERS_SCANNED_MAX: Final = 50_000
DEAD_LETTERS_SCANNED_BYTES_MAX: Final = 64 * MIB
DEAD_HISTORY_BYTES_MAX: Final = 16 * KIB
DEAD_LETTER_ORIGINS_MAX: Final = 10  # earlier origins in the history of a dead letter
OUTBOX_FRAME_BYTES: Final = 4 * MIB
OUTBOX_FRAME_MESSAGES: Final = 2_000
SQS_RECORD_CHARS_MAX: Final = 64 * KIB  # attributes and tags of a queue
STREAM_IN_FLIGHT_MESSAGES_MAX: Final = 1_000_000
LEASES_ENDED_AT_ONCE: Final = 100  # in one event frame, when their connection has closed
STREAM_MOVED_LEASES_MAX: Final = 10_000  # of partitions that left; others end at their deadlines
SNAPSHOT_EVENTS_MIN: Final = 1000
SNAPSHOT_EVENTS_MAX: Final = 5000
DELAY_HORIZON_MS: Final = 3_600_000
WORKER_WAITING_MESSAGES_MAX: Final = 10_000  # behind busy keys of one worker in Python

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
CERTIFICATE_CHECK_S: Final = 60.0
TLS_HANDSHAKE_TIMEOUT_S: Final = 5.0
TOKENS_MAX: Final = 1_000
TOKEN_RULES_MAX: Final = 64
QUOTA_MAX: Final = 2**50
QUOTA_EXCHANGE_MS: Final = 100  # from a use of a rate until other nodes are told
QUOTA_STORED_MS: Final = 500  # for which what topics hold is known, without a new count
SPENT_AMOUNTS_MAX: Final = 20_000  # uses of rates that another node was not told yet
QUOTA_TENANTS_MAX: Final = 10_000  # whose use is known at a time, of each token
REFUSALS_PER_S: Final = 200  # of one token or address; those beyond it are held for a moment
REFUSAL_PAUSE_S_MAX: Final = 1.0
REFUSAL_SENDERS_MAX: Final = 10_000
HEAD_CHECK_BYTES: Final = 64 * KIB  # a larger body is read only from a sender with a valid token
TOKEN_LIFETIME_MS_MAX: Final = 3_650 * 86_400_000
TOKEN_ENDED_KEPT_MS: Final = 90 * 86_400_000  # in the list of tokens, once revoked or expired
SCHEDULES_MAX: Final = 1_000
SCHEDULE_MESSAGES_MAX: Final = 100
SCHEDULE_BYTES_MAX: Final = 8 * KIB  # of its messages, as JSON
SCHEDULE_EVERY_MS_MIN: Final = 1_000
SCHEDULE_EVERY_MS_MAX: Final = 366 * 86_400_000
SCHEDULE_GRACE_MS: Final = 60_000  # a time missed so long ago is made up for in any case
SCHEDULE_RETRY_MS: Final = 1_000  # after what may succeed later
SCHEDULES_AT_ONCE: Final = 16
SCHEDULE_RUNS_MAX: Final = 100  # in one change of the metadata
SCHEDULE_PROBLEM_CHARS_MAX: Final = 300
SCHEDULE_AHEAD_MS_MAX: Final = 600_000  # of a time that was published for; more: the clock was set
SCHEDULE_CHECK_MS: Final = 60_000  # between looks at the clock, which may be set
CRON_CHARS_MAX: Final = 200
AUDIT_WAIT_S: Final = 5.0  # for a record to be stored, then the action is refused
AUDIT_REFUSALS_PERIOD_S: Final = 60.0  # the first refusal of a sender is recorded, the rest counted
AUDIT_PEERS_MAX: Final = 100  # hosts that are told apart in a period, of senders without a token
AUDIT_BODY_BYTES_MAX: Final = 16 * KIB
AUDIT_READ_MAX: Final = 1_000
METADATA_TEXT_CHARS_MAX: Final = 500  # a name, an address or a reason
METADATA_COMMAND_BYTES_MAX: Final = 256 * KIB
NODE_SESSION_TIMEOUT_MS: Final = 1_000
READY_SILENT_S_MAX: Final = 5.0  # without a controller; an election takes less
NODE_HEARSAY_GRACE_MS: Final = 500  # more, for a silent node that answers in the Raft group
NODE_TAKEOVER_MS_MIN: Final = 600  # for a new controller to hear a node, or Raft to answer
HANDOFF_TIMEOUT_MS: Final = 3_000  # for other nodes to take over from a stopping leader
HANDOFF_FLUSH_TIMEOUT_MS: Final = 1_000  # before that, for its frames to be replicated
PREFERRED_LEADER_DELAY_MS: Final = 10_000  # uptime after which a node gets its leaderships back
RESET_REPLICAS_MAX: Final = 1_000  # in one command
RAFT_SILENT_UNFIT_MS: Final = 2_000  # no answers in the Raft group for so long: leads nothing
RAFT_SESSION_TIMEOUT_MS: Final = 1_500  # a leader's own, which ends before others can lead
CONTROLLER_HANDOVER_PAUSE_MS: Final = 10_000  # between two handovers by a node that hears few
RAFT_CUT_OFF_S: Final = 3.0  # of silence: then no change is proposed, no leader waited for
RAFT_OWNER_SILENT_S: Final = 1.5  # of the event loop, after which a node gives the lead away
RAFT_OWNER_SIGN_S: Final = 0.4  # between two signs that the event loop runs
CONTROLLER_COMMANDS_MAX: Final = 200  # proposed by one pass of the controller
PARTITION_CHANGES_MAX: Final = 200  # in one command
REASSIGNMENTS_MAX: Final = 1_000
REBALANCE_MOVES_MAX: Final = 500  # planned by one rebalance
REASSIGNMENT_BYTES_PER_S_MAX: Final = 2**40
REASSIGNMENT_CHUNK_BYTES_MIN: Final = 64 * KIB  # the least that is sent at once to a new replica

# HTTP
CONNECTIONS_MAX: Final = 20_000
TARGET_BYTES_MAX: Final = 8 * KIB
HTTP_HEADERS_BYTES_MAX: Final = 32 * KIB
HTTP_HEADERS_MAX: Final = 100
BODY_BYTES_MAX: Final = 32 * MIB
BODIES_IN_FLIGHT_BYTES_MAX: Final = 256 * MIB
SQS_BODY_BYTES_MAX: Final = 4 * MIB  # a batch of 1 MiB, percent-encoded, with its attributes
PIPELINE_REQUESTS_MAX: Final = 32
JSON_MESSAGES_PER_REQUEST_MAX: Final = 10_000
DEDUP_IDS_PER_REQUEST_MAX: Final = 131_072  # rows of frames; the answer names each duplicate
HEADER_TIMEOUT_MS: Final = 10_000
BODY_TIMEOUT_MS: Final = 60_000
IDLE_TIMEOUT_MS: Final = 120_000
WRITE_TIMEOUT_MS: Final = 60_000
TAKEN_BYTES_MIN: Final = 64 * KIB  # of an answer in that time, or all that is left of it
UNSENT_BYTES_MAX: Final = 256 * MIB  # of answers that clients have not taken yet
DRAIN_TIMEOUT_MS: Final = 8_000
HEARTBEAT_MS: Final = 15_000
HOLD_COUNTED_S: Final = 0.001
HOLD_NOTED_S: Final = 0.005  # of the event loop by one step of a request
HOLD_LOGGED_S: Final = 0.1
STREAM_BEGINS_MS: Final = 5_000  # for the first bytes of a stream to reach the client

# Reading
READ_MESSAGES_MAX: Final = 10_000
READ_BYTES_MAX: Final = 8 * MIB
ROWS_ENTERED_AT_ONCE: Final = 2_048  # of published messages with lanes, tenants or delays
READ_UNPACKED_BYTES_MAX: Final = 32 * MIB  # of compressed frames that a read takes columns from
READ_BULK_MESSAGES_MAX: Final = 131_072  # for a reader that bounds the bytes of frames
ROWS_UNPACKED_BYTES: Final = 32 * MIB  # of frames converted to rows at once
TIME_SCAN_BYTES_MAX: Final = 64 * MIB
FRAME_SCAN_COST_BYTES: Final = 4 * KIB  # the cost of reading a frame besides its bytes
BACKGROUND_READS_WAITING_MAX: Final = 32
BACKGROUND_PIECE_BYTES: Final = 4 * MIB
BACKGROUND_JSON_BYTES: Final = MIB
BACKGROUND_JSON_MESSAGES: Final = 500
PEEK_SCANNED_MESSAGES_MAX: Final = 50_000
SCHEDULED_MESSAGES_MAX: Final = 1_000
SEARCH_MESSAGES_MAX: Final = 100
SEARCH_TEXT_BYTES_MAX: Final = 1000
SEARCH_CANDIDATES_MAX: Final = 10_000
SEARCH_SCANNED_MESSAGES_MAX: Final = 500_000
SEARCH_SCANNED_BYTES_MAX: Final = 256 * MIB
SEARCHES_MAX: Final = 2
SEARCHES_WAITING_MAX: Final = 32
TRACE_COPIES_MAX: Final = 32
TRACE_WATCHES_MAX: Final = 10_000
HISTORY_DAYS_MAX: Final = 366

# What goes on now
LIVE_INTERVAL_S_MIN: Final = 0.5  # between two lines of GET /v1/live
LIVE_INTERVAL_S_MAX: Final = 60.0
LIVE_TOPICS_MAX: Final = 10_000  # that a line of GET /v1/live tells of
LIVE_LINE_TOPICS_MAX: Final = 500  # more changed ones come in several lines
LIVE_GROUPS_MAX: Final = 100  # of a topic, those with the most lag
LIVE_PART_GROUPS_MAX: Final = 1_000  # the same for another node, which adds up, and by tokens
LIVE_SEARCH_MAX: Final = 200  # characters of a part of names
LIVE_WAITS_MAX: Final = 10  # groups that have waited longest, and topics with offline partitions
LIVE_NAMED_MAX: Final = 20  # topics that a request names, with their lanes and tenants
LIVE_TENANTS_MAX: Final = 10  # of a group, those that most wait
FIRST_READY_TIMES_MAX: Final = 200_000  # of messages for which groups wait, remembered
LIVE_NODE_TIMEOUT_S: Final = 2.0  # for another node's part of a line

# Metrics
METRICS_GROUPS_MAX: Final = 10_000  # with series of their own, the first by topic and name
METRICS_QUEUES_MAX: Final = 1_000  # series of lanes, and of tenants: those that most wait
METRICS_READ_S_MAX: Final = 1.0  # of an answer, to read how old ready messages are

# Raft: the metadata log of a cluster
RAFT_COMMAND_BYTES_MAX: Final = MIB
RAFT_COMMANDS_WAITING_MAX: Final = 1_000  # of one node; below RAFT_REQUESTS_REMEMBERED
RAFT_REQUESTS_REMEMBERED: Final = 1_024  # of each proposer, to reject duplicates
RAFT_PROPOSERS_REMEMBERED: Final = 1_024
RAFT_RESULT_BYTES_MAX: Final = 4 * KIB  # a larger result is not remembered for a retry
RAFT_MEMBERS_MAX: Final = 64
RAFT_MEMBER_CHARS_MAX: Final = 300
RAFT_JOURNAL_BYTES: Final = 32 * MIB  # trimmed from this size on, however few the entries
RAFT_JOURNAL_BYTES_MAX: Final = 256 * MIB  # no new commands from this size on
RAFT_RECORD_BYTES_MAX: Final = 2 * MIB
RAFT_IN_FLIGHT_ENTRIES_MAX: Final = 4_096  # sent to a follower without an answer yet
RAFT_BATCH_ENTRIES_MAX: Final = 1_024
RAFT_DIGESTS_REMEMBERED: Final = 1_024  # of recent states, to compare with the leader's
RAFT_SNAPSHOT_BYTES_MAX: Final = 4 * GIB
RAFT_SNAPSHOT_RETRY_S: Final = 1.0  # after one for which there was no room
RAFT_SNAPSHOT_IDLE_S: Final = 10.0  # a transfer without progress ends after this
RAFT_MESSAGE_BYTES_MAX: Final = 4 * MIB
RAFT_SEND_BUFFER_BYTES_MAX: Final = 16 * MIB  # waiting to be sent to one member
RAFT_HANDSHAKES_MAX: Final = 64  # connections that have not proved their identity yet
RAFT_UNCONNECTED_S: Final = 5.0  # without a connection to a member before it is shown
RAFT_HANDSHAKE_TIMEOUT_S: Final = 3.0
RAFT_UNKNOWN_PEER_SEEN_S: Final = 10.0  # after which a member with another disk is forgotten
RAFT_SECRET_BYTES_MIN: Final = 16
