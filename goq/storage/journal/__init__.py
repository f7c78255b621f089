"""The journal of a node: one write and one sync for what a turn appends to any log.

journal   appends records to pieces, and hands pieces back when segments have what they hold
record    the bytes of a record, and of the entries in it
piece     one file of the journal, filled with zeros ahead
recovery  what a start finds in the pieces, given to the logs
redo      gives segments what only the journal has, after a power cut
"""
