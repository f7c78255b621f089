"""Consumer groups of a topic: membership, and the state of single messages.

coordinator        the memberships of all groups of a topic
membership         the membership of one group: hand-overs, history, session timers
messages_by_state  the messages of a group by delivery state, and exact counts
message_changes    changes to single messages: cancel, move, reschedule
state_at_time      a group as of a time, rebuilt from a snapshot and later events
"""
