"""Leases of a consume loop, as its process sees them.

message_buffer  the messages that a loop received, with the times of their leases
prefetch        how many messages a loop receives ahead
lease_keeper    the thread that extends leases, or gives messages back
"""
