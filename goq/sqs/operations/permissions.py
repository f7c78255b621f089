"""AddPermission and RemovePermission: statements of the attribute ``Policy``.

The policy is stored and shown. The rules of tokens decide who may do what.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from goq.sqs.attributes import POLICY, POLICY_CHARS_MAX, QueueRecord
from goq.sqs.node_calls import SqsCall
from goq.sqs.operations.queue_directory import QueueDirectory
from goq.sqs.protocol.errors import SqsError, invalid_parameter, missing_parameter

_VERSION: Final = "2012-10-17"
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_ACCOUNT: Final = re.compile(r"\d{12}", re.ASCII)
_ACTIONS: Final = frozenset(
    (
        "*",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    )
)
_ACTIONS_MAX: Final = 7
_STATEMENTS_MAX: Final = 20


class PermissionOperations:
    """Adds statements to the policies of queues, and removes them by their labels."""

    def __init__(self, queues: QueueDirectory) -> None:
        self._queues = queues

    async def add(self, call: SqsCall) -> None:
        """AddPermission."""
        label = _checked_label(call)
        accounts, actions = _checked_accounts(call), _checked_actions(call)
        queue = await self._queues.locate(call, call.shape.queue_url)
        arn = self._queues.arn(queue.topic.name)
        added = {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in accounts]},
            "Action": [f"SQS:{action}" for action in actions],
            "Resource": arn,
        }

        def changed(record: QueueRecord) -> QueueRecord:
            policy = _policy(record.attributes.get(POLICY))
            statements = _statements(policy)
            if any(_is_labelled(each, label) for each in statements):
                raise _refused_label(label, "Already exists.")
            if len(statements) >= _STATEMENTS_MAX:
                raise SqsError("OverLimit", f"A policy has at most {_STATEMENTS_MAX} statements.")
            head = {"Version": _VERSION, "Id": f"{arn}/SQSDefaultPolicy", **policy}
            text = json.dumps({**head, "Statement": [*statements, added]})
            if len(text) > POLICY_CHARS_MAX:
                raise SqsError("OverLimit", f"A policy has at most {POLICY_CHARS_MAX} characters.")
            attributes = {**record.attributes, POLICY: text}
            return msgspec.structs.replace(record, attributes=attributes)

        await self._queues.change(call, queue, changed)

    async def remove(self, call: SqsCall) -> None:
        """RemovePermission. A policy without a statement goes with its last one."""
        label = _checked_label(call)
        queue = await self._queues.locate(call, call.shape.queue_url)

        def changed(record: QueueRecord) -> QueueRecord:
            policy = _policy(record.attributes.get(POLICY))
            statements = _statements(policy)
            left = [each for each in statements if not _is_labelled(each, label)]
            if len(left) == len(statements):
                raise _refused_label(label, "can't find label.")
            attributes = {key: value for key, value in record.attributes.items() if key != POLICY}
            if left:
                attributes[POLICY] = json.dumps({**policy, "Statement": left})
            return msgspec.structs.replace(record, attributes=attributes)

        await self._queues.change(call, queue, changed)


def _policy(text: str | None) -> dict[str, Any]:
    """Return a stored policy; a text that is none, by ``goq topic alter``, counts as absent."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _statements(policy: dict[str, Any]) -> list[Any]:
    """Return the statements; a single one may stand without a list."""
    found = policy.get("Statement", [])
    return list(found) if isinstance(found, list) else [found]


def _is_labelled(statement: Any, label: str) -> bool:
    return isinstance(statement, dict) and statement.get("Sid") == label


def _checked_label(call: SqsCall) -> str:
    label: str | None = call.shape.label
    if not label:
        raise missing_parameter("Label")
    if not _LABEL.fullmatch(label):
        raise _refused_label(label, "it has 1 to 80 of A-Z a-z 0-9 _ -.")
    return label


def _checked_accounts(call: SqsCall) -> list[str]:
    accounts: list[str] | None = call.shape.accounts
    if not accounts:
        raise missing_parameter("AWSAccountIds")
    for account in accounts:
        if not _ACCOUNT.fullmatch(account):
            raise invalid_parameter(
                f"Value {account[:100]} for parameter PrincipalId is invalid. Reason: an account"
                " is 12 digits."
            )
    return accounts


def _checked_actions(call: SqsCall) -> list[str]:
    actions: list[str] | None = call.shape.actions
    if not actions:
        raise missing_parameter("Actions")
    if len(actions) > _ACTIONS_MAX:
        raise SqsError(
            "OverLimit", f"{len(actions)} Actions were found, maximum allowed is {_ACTIONS_MAX}."
        )
    for action in actions:
        if action not in _ACTIONS:
            raise invalid_parameter(
                f"Value SQS:{action[:100]} for parameter ActionName is invalid. Reason: Only the"
                " queue owner is allowed to invoke this action, or it does not exist."
            )
    return actions


def _refused_label(label: str, reason: str) -> SqsError:
    return invalid_parameter(
        f"Value {label[:100]} for parameter Label is invalid. Reason: {reason}"
    )
