"""Messages from stdin and files.

rejects   messages that cannot be published
splitter  input cut into messages, chunk by chunk
form      how a piece becomes messages, with the options of all messages
jsonl     messages as JSON objects, one a line
"""
