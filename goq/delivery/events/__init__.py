"""The events of a partition, and their effects on messages.

event        all events, their encoding, and lease tokens
frame_codec  frames of events, as the log stores them
affected     the messages that an event is about
transitions  the states of a message and the table of their transitions
"""
