"""Delayed messages: those that wait for their due time, and those that have matured.

delayed_messages  the messages that wait: near ones in memory, far ones on the disk
timer_wheel       near messages by due time
slot_level        the slots of one width of the wheel
maturity          which delayed messages have matured
"""
