"""A node as a whole.

bounds       the largest requests that routes allow
holds        how long these hold the event loop
stalls       how long these hold up others
endurance    memory and open files under a mixed load
starts       a start with many topics
commands     whole processes of the command line
redis_lines  what one of these is compared with
console      many quiet groups, and a page open
lookers      many consoles
security     tokens, HTTPS and quotas
sqs          the SQS-compatible endpoint
sqs_batches  batches by boto3 at any such endpoint
"""
