"""Delayed messages and ready queues of a partition, in memory.

ready_state          the queues and the schedule; follows publish, maturation and moves
ready_state_manager  their rebuild, and the entry of large frames
"""
