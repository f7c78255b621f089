"""Views of the broker's state for answers, and merges of the answers of several nodes.

log_read       reads of a partition's log, by offset, by time, in the background
peek           pages of a group's messages in one state
group          a group's progress, and the effect of a reset
group_at_time  a group's progress at an earlier time
cluster        the cluster metadata as clients see it
health         partitions offline and damaged, and problems with what to do
group_backlog  messages that wait in a group: since when, and by lane and tenant
live           what goes on now: totals of topics and groups, the load of nodes
schedule_publisher  the publishes of schedules
merge          merges of topics, groups and members over nodes
merge_pages    merges of pages of messages over nodes
principal_usage  what a principal with quotas publishes, stores and has leased here
"""
