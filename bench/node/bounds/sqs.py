"""The largest batches of the SQS-compatible endpoint, by the protocol whose bodies are largest."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from bench.node.bounds.work import Answer, Request, Rows, Work
from goq.limits import MIB

ROWS = Rows()
_FORM = "application/x-www-form-urlencoded"
_BATCH = 10
_MESSAGE_CHARS = 50_000  # of two bytes each; a batch has at most 1 MiB
_HANDLE = re.compile(rb"<ReceiptHandle>([^<]*)</ReceiptHandle>")


def _ask(work: Work, operation: str, fields: dict[str, str]) -> Answer:
    form = {"Action": operation, "QueueUrl": f"{work.sqs_url}/000000000000/queue", **fields}
    return work.sqs.call("POST", "/", urlencode(form).encode(), kind=_FORM)


def _sending(work: Work) -> dict[str, str]:
    _ask(work, "CreateQueue", {"QueueName": "queue"})
    form: dict[str, str] = {}
    for number in range(1, _BATCH + 1):
        entry = f"SendMessageBatchRequestEntry.{number}"
        form |= {f"{entry}.Id": f"id-{number}", f"{entry}.MessageBody": "ü" * _MESSAGE_CHARS}
        for attribute in range(1, 11):
            at = f"{entry}.MessageAttribute.{attribute}"
            form[f"{at}.Name"] = f"attribute-{attribute}"
            form[f"{at}.Value.DataType"] = "String"
            form[f"{at}.Value.StringValue"] = "v" * 100
    return form


@ROWS.add
def sqs_send_batch(work: Work) -> Request:
    form = _sending(work)
    return lambda: _ask(work, "SendMessageBatch", form)


_ALL = {"MaxNumberOfMessages": "10", "AttributeName.1": "All", "MessageAttributeName.1": "All"}


@ROWS.add
def sqs_receive_batch(work: Work) -> Request:
    _ask(work, "SendMessageBatch", _sending(work))
    return lambda: _ask(work, "ReceiveMessage", _ALL)


@ROWS.add
def sqs_delete_batch(work: Work) -> Request:
    _ask(work, "SendMessageBatch", _sending(work))
    found = _HANDLE.findall(_ask(work, "ReceiveMessage", _ALL).body)
    form: dict[str, str] = {}
    for number, handle in enumerate(found, start=1):
        at = f"DeleteMessageBatchRequestEntry.{number}"
        form |= {f"{at}.Id": f"id-{number}", f"{at}.ReceiptHandle": handle.decode()}
    return lambda: _ask(work, "DeleteMessageBatch", form)


@ROWS.add
def sqs_receive_large(work: Work) -> Request:
    _ask(work, "CreateQueue", {"QueueName": "queue"})
    for _ in range(_BATCH):
        _ask(work, "SendMessage", {"MessageBody": "ü" * (MIB // 2)})
    return lambda: _ask(work, "ReceiveMessage", _ALL)


@ROWS.add
def sqs_send_large(work: Work) -> Request:
    _ask(work, "CreateQueue", {"QueueName": "queue"})
    return lambda: _ask(work, "SendMessage", {"MessageBody": "ü" * (MIB // 2)})
