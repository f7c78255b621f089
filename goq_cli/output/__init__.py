"""Answers on stdout, notices and errors on stderr.

output          text, JSON, notices, errors, confirmation
table           tables: aligned on a terminal, tab-separated in a pipe
text            text of messages: escaped, shortened, bytes as hex
retry_notice    what is said while no node answers
message_format  how a message is printed: a format, raw, or JSON
trace           the timeline of a message
topic_history   a topic over time, as bars or fields
cluster         a cluster: summary, nodes, topics, problems
top             what ``goq top`` shows: rates, tables
progress        count, share, rate and remaining time of a long command
log_share       the share of a replay that was read
disk_errors     errors of the disk, in one sentence
export          tables and files of ``goq export``
report          a report of ``goq report`` and ``goq republish``
"""
