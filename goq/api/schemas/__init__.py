"""JSON bodies of requests and answers, described in OpenAPI.

base          base classes of input and output bodies
topics        topics, and a topic's history
messages      publish, read, one message, producers
groups        receive, settle, streams, progress, reset
members       members of a group and their partitions
dead_letters  dead letters, redrive, purge
trace         the trace of a message
audit         records of the audit trail
tokens        tokens, and the sender of a request
schedules     schedules, and their messages
backups       begun and finished backups
restores      begun and finished restores
live          lines of what goes on now
cluster       nodes, partitions, reassignments, elections, settings
"""
