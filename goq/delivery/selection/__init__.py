"""The selection of messages for one receive.

selector    passes fresh messages, in the order of the scheduler, and selects what may be leased
redelivery  due retries and released messages; what is selected so far
"""
