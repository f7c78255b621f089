"""Messages from stdin and files.

splitter  input cut into messages, chunk by chunk
jsonl     messages as JSON objects, one a line
"""
