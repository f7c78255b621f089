"""Messages from stdin and files.

rejects   messages that cannot be published
splitter  input cut into messages, chunk by chunk
jsonl     messages as JSON objects, one a line
"""
