"""Frames of messages and events as Arrow record batches, and rows as frames.

schema        the columns of the three tables
node_source   frames of a node, read in the background and ahead
messages      a frame of messages as a record batch
events        frames of events as rows, one for each message
text_columns  keys and values as text columns
json_columns  JSON values as typed columns
json_inference  the columns of JSON values, inferred and widened
frames        rows of a record batch as frames to publish
tables        the tables: how each is read and converted
"""
