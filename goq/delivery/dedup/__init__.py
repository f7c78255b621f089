"""Duplicates: what a partition has stored already, by producer sequence and by dedup id.

producer_table  the latest batches of each producer
dedup_window    dedup ids within the window, in tables by age
id_table        a hash table of 128-bit ids
"""
