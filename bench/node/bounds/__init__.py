"""The largest requests that routes allow: rows of ``bench.node.stalls`` and ``bench.node.holds``.

work     a client, the topics to ask about, and the tables of requests
publish  messages published, as JSON and as frames
consume  receive, ack and the like
read     looks at messages, dead letters and events
members  members of a group that shares partitions
sqs      batches of the SQS-compatible endpoint
admin    looks at groups, topics and the node, and settings
"""

from bench.node.bounds import admin, consume, members, publish, read, sqs
from bench.node.bounds.work import Caller, Work

SCENARIOS = publish.ROWS | consume.ROWS | read.ROWS | members.ROWS | sqs.ROWS | admin.ROWS

__all__ = ["SCENARIOS", "Caller", "Work"]
