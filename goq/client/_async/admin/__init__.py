"""Administration: topics, single messages, nodes, tokens, schedules.

admin           topics, groups and the node
message_admin   single messages, traces, dead letters
cluster_admin   the cluster
token_admin     tokens, and the sender of a request
schedule_admin  schedules
"""
