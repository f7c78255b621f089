"""Route of the trace of one message."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from goq import limits
from goq.access.rule import Principal, Verb
from goq.api.codec.messages import encode_list, json_response, put_message
from goq.api.codec.request import duration_ms, query_int
from goq.api.needs import READ_MESSAGE, principal_of
from goq.api.route import Parameter, Route
from goq.api.routing_policy import ToPartitionLeader, partition_of_message
from goq.api.schemas.messages import MessageOut
from goq.api.schemas.trace import StepOut, TracedMessageOut, TraceGapOut, TraceOut
from goq.api.values import DURATION, integer
from goq.broker.broker import Broker
from goq.broker.runtime.disposal import dispose
from goq.broker.trace.trace import MessageHistory, Trace, TracedStep
from goq.broker.trace.tracer import LIVE, Tracer
from goq.config.topic import TopicSettings
from goq.delivery.trace.steps import StepName, TraceGap
from goq.http.message import Request, Response
from goq.model import Message, MessageId
from goq.units import format_time_us

_TRACEPARENT = "traceparent"


class TraceRoutes:
    """Traces of messages."""

    def __init__(self, broker: Broker, node_id: str) -> None:
        self._broker = broker
        self._node_id = node_id
        self._tracer = Tracer(broker)

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/messages/{id}/trace",
                self.trace,
                "Show what happened to one message, step by step",
                answer=TraceOut,
                parameters=(
                    Parameter(
                        "wait", "hold the answer so long until there is another step", DURATION
                    ),
                    Parameter("seen", "how many steps are known already", integer(0)),
                ),
                errors=(
                    "topic_not_found",
                    "partition_not_found",
                    "message_not_found",
                    "too_many_requests",
                ),
                waits=True,
                routing=ToPartitionLeader(partition_of_message, needs_session=True),
                needs=READ_MESSAGE,
            ),
        ]

    async def trace(self, request: Request, text: str) -> Response:
        """Show the events of one message."""
        message_id = MessageId.parse(text)
        wait_ms = duration_ms(request.query.get("wait", "0"), "wait", limits.WAIT_MS_MAX)
        seen = query_int(request, "seen", 0)
        may_read = partial(principal_of(request).allows, Verb.READ)
        trace = await self._tracer.follow(message_id, may_read, seen=seen, wait_ms=wait_ms)
        return json_response(await self._out(trace))

    async def traced(self, message_id: MessageId, principal: Principal) -> TraceOut:
        """Return the trace of a message, as far as a principal may read it.

        Raises ``MessageNotFound``.
        """
        may_read = partial(principal.allows, Verb.READ)
        return await self._out(await self._tracer.trace(message_id, may_read))

    async def _out(self, trace: Trace) -> TraceOut:
        broker, took_us = self._broker, trace.publish_to_ack_us
        topic, number, offset = trace.message.id
        message = message_out(trace.message, broker.topic(topic).settings)
        node_id: str | None = self._node_id
        if holders := broker.topic(topic).partitions[number].appender.holders(offset):
            node_id = None  # the node it was published on is not recorded
            if trace.message.state == LIVE:
                message.nodes = list(holders)
        out = TraceOut(
            message,
            await encode_list(_step_out(each, broker, node_id) for each in trace.steps),
            trace.attempts,
            None if took_us is None else took_us / 1000,
            [_incomplete_out(each) for each in trace.incomplete],
        )
        await dispose(trace.containers())
        return out


def message_out(traced: MessageHistory, settings: TopicSettings) -> TracedMessageOut:
    """Return the known fields of a message, without its value."""
    topic, partition, offset = traced.id
    out = TracedMessageOut(
        id=str(traced.id), topic=topic, partition=partition, offset=offset, state=traced.state
    )
    if traced.message is not None:
        _put_message(out, traced.message, settings)
    if traced.published_us is not None:
        out.timestamp = format_time_us(traced.published_us)
    if traced.producer is not None:
        out.producer = traced.producer
    if traced.retained_until_us is not None:
        out.retained_until = format_time_us(traced.retained_until_us)
    return out


def _put_message(out: TracedMessageOut, message: Message, settings: TopicSettings) -> None:
    plain = MessageOut(id="", partition=0, offset=0, timestamp="")
    put_message(plain, message)
    out.key, out.key_base64, out.headers = plain.key, plain.key_base64, plain.headers
    lane = settings.default_lane if message.lane is None else message.lane
    out.lane = settings.lane_name(lane)
    headers_bytes = sum(len(name.encode()) + len(value) for name, value in message.headers)
    out.size_bytes = len(message.value or b"") + len(message.key or b"") + headers_bytes
    if message.tenant is not None:
        out.tenant = message.tenant
    if message.deliver_at_ms:
        out.deliver_at = format_time_us(message.deliver_at_ms * 1000)
    if message.expires_at_ms:
        out.expires_at = format_time_us(message.expires_at_ms * 1000)
    for name, value in message.headers:
        if name.lower() == _TRACEPARENT:
            out.traceparent = value.decode(errors="replace")


def _step_out(told: TracedStep, broker: Broker, node_id: str | None) -> StepOut:
    step = told.step
    out = StepOut(time=format_time_us(step.time_us), event=str(step.name), id=str(told.id))
    for name in ("group", "consumer", "attempt", "reason"):
        if (value := getattr(step, name)) is not None:
            setattr(out, name, value)
    if step.until_ms is not None:
        out.until = format_time_us(step.until_ms * 1000)
    if step.due_ms is not None:
        out.due = format_time_us(step.due_ms * 1000)
    if step.lane is not None:
        out.lane = broker.topic(told.id.topic).settings.lane_name(step.lane)
    if told.to is not None:
        out.to = str(told.to)
    if told.origin is not None:
        out.from_ = str(told.origin)
    if told.producer is not None:
        out.producer = told.producer
    if step.name is StepName.PUBLISHED and told.origin is None:
        out.node = UNSET if node_id is None else node_id
        out.durability = str(broker.topic(told.id.topic).settings.fsync)
    return out


def _incomplete_out(gap: TraceGap) -> TraceGapOut:
    out = TraceGapOut(reason=gap.reason)
    if gap.from_us is not None:
        out.from_ = format_time_us(gap.from_us)
    if gap.to_us is not None:
        out.to = format_time_us(gap.to_us)
    return out
