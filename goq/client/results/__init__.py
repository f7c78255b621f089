"""Values that the administrative calls of the client return.

result        the base of all of them, and the decoder of a node's answer
topic         topics: partitions, settings, messages by day, rates
group         groups: progress, members, rebalances, resets
message       single messages: content, state, state for each group
dead_letter   dead letters, and the results of redriving and purging them
trace         the life of a message, step by step
cluster       nodes, replicas, reassignments, elections, configuration
node          version and health of one node

Every value is a frozen dataclass. Fields have the names of the HTTP API (docs/http.md); those that
an answer may leave out have defaults. Times are ``datetime`` in UTC.
"""
