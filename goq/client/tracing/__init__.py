"""Tracing with OpenTelemetry: trace context in messages, and traces as spans.

trace_context  W3C Trace Context in the headers of messages
process_span   the span of a consumer around the handling of a message
spans          the life of a message as spans
otlp           spans sent to a receiver of OTLP over HTTP
"""
