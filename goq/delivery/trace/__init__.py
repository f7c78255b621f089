"""The trace of one message.

steps     the steps of a message's life, and gaps
timeline  builds the steps from events
"""
