"""AWS JSON 1.0: the operation is in ``X-Amz-Target``, its input and output are JSON objects."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from goq.http.message import Request, Response
from goq.sqs.protocol.errors import SqsError

CONTENT_TYPE: Final = "application/x-amz-json-1.0"
TARGET: Final = "x-amz-target"
REQUEST_ID: Final = "x-amzn-RequestId"
_TARGET_PREFIX: Final = "AmazonSQS."
_decoders: Final[dict[type[Any], msgspec.json.Decoder[Any]]] = {}
_encoder: Final = msgspec.json.Encoder()


class JsonExchange:
    """One request in this protocol, and its answer."""

    def __init__(self, request: Request) -> None:
        self._body = request.body
        self.operation = request.headers.get(TARGET, "").removeprefix(_TARGET_PREFIX)

    def decode_input(self, shape: type[Any]) -> Any:
        """Return the input of the operation. Raises ``SqsError``."""
        decoder = _decoders.get(shape)
        if decoder is None:
            decoder = _decoders[shape] = msgspec.json.Decoder(shape, strict=False)
        try:
            return decoder.decode(self._body or b"{}")
        except msgspec.ValidationError as error:
            raise SqsError("InvalidParameterValue", f"The request is invalid: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SqsError("SerializationException", "The body is not a JSON object.") from None

    @staticmethod
    def readable(text: str) -> str:
        """Return a text as JSON has it: any is as it is."""
        return text

    @staticmethod
    def encode_part(part: dict[str, Any]) -> msgspec.Raw:
        """Return a member of a list of an output as it stands in the answer."""
        return msgspec.Raw(_encoder.encode(part))

    def encode_output(self, output: object, request_id: str) -> Response:
        """Return the answer; an operation without output has an empty body."""
        body = b"" if output is None else _encoder.encode(output)
        return Response(200, body, CONTENT_TYPE, {REQUEST_ID: request_id})

    def encode_error(self, error: SqsError, request_id: str) -> Response:
        """Return the answer of an operation that failed.

        The header has the error's code in the query protocol, which SDKs show to their users.
        """
        body = _encoder.encode({"__type": error.json_type, "message": error.message})
        fault = "Sender" if error.is_of_sender else "Receiver"
        headers = {REQUEST_ID: request_id, "x-amzn-query-error": f"{error.query_code};{fault}"}
        return Response(error.status, body, CONTENT_TYPE, headers)
