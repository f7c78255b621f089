"""AWS JSON 1.0: the operation is in ``X-Amz-Target``, its input and output are JSON objects."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from goq.http.message import Response
from goq.sqs.protocol.errors import SqsError

CONTENT_TYPE: Final = "application/x-amz-json-1.0"
TARGET_PREFIX: Final = "AmazonSQS."
_decoders: Final[dict[type[Any], msgspec.json.Decoder[Any]]] = {}
_encoder: Final = msgspec.json.Encoder()


def decode_input(body: bytes, shape: type[Any]) -> Any:
    """Return the input of an operation. Raises ``SqsError``."""
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.json.Decoder(shape, strict=False)
    try:
        return decoder.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise SqsError("InvalidParameterValue", f"The request is invalid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SqsError("SerializationException", "The body is not a JSON object.") from None


def encode_output(output: object) -> Response:
    """Return the answer of an operation; one without output has an empty body."""
    body = b"" if output is None else _encoder.encode(output)
    return Response(200, body, CONTENT_TYPE)


def encode_error(error: SqsError) -> Response:
    """Return the answer of an operation that failed.

    The header has the error's code in the query protocol, which SDKs show to their users.
    """
    body = _encoder.encode({"__type": error.json_type, "message": error.message})
    fault = "Sender" if error.is_of_sender else "Receiver"
    headers = {"x-amzn-query-error": f"{error.query_code};{fault}"}
    return Response(error.status, body, CONTENT_TYPE, headers)
