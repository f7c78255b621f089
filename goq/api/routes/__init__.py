"""Routes of the HTTP API: declarations and handlers, a module for each resource.

topics        create, list, describe, change and delete topics; a topic's history
messages      publish, and reads of a partition's log
message       show, change and cancel one message
producers     progress of an idempotent producer
receive       receive, at once or as soon as there is something
groups        ack, nack, reject, release, extend; progress, settings and reset of groups
stream        streaming receive
members       join, heartbeat and leave of group members
dead_letters  list, redrive and purge of dead letters
scheduled     list of delayed messages
schedules     create, list, show, pause, resume and remove of schedules
events        reads of a partition's event log
trace         the trace of one message
search        messages by key, dedup id or header
grep          messages by a text in them
audit         the audit trail
tokens        create, list, rotate, revoke tokens; the sender of a request
backups       begin a backup, and see how it went
restores      begin a restore of a topic, and see how it went
live          what goes on now, a line a second
cluster       cluster state and operations
console       the files of the web console
operations    health, version, metrics, OpenAPI; calls between nodes
"""
