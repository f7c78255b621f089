"""OpenAPI 3.1 document and HTML page, generated from the routes."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from goq import __version__
from goq.api.codec.problem import Problem
from goq.api.route import FRAMES, JSON, NDJSON, Route
from goq.api.schemas.members import GroupMemberOut
from goq.api.schemas.messages import HeaderIn
from goq.api.schemas.topics import PartitionOut
from goq.api.schemas.trace import StepOut
from goq.api.values import GROUP, MESSAGE_ID, PRODUCER_ID_MAX, TEXT, TOPIC, integer
from goq.errors import BY_CODE

_IN_PATH = {
    "topic": TOPIC,
    "group": GROUP,
    "id": MESSAGE_ID,
    "producer_id": integer(1, PRODUCER_ID_MAX),
}
_REF = "#/components/schemas/{name}"


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of ``routes``."""
    shapes = [s for route in routes for s in (route.body, route.answer) if s is not None]
    unique = list(
        dict.fromkeys([*shapes, GroupMemberOut, HeaderIn, PartitionOut, StepOut, Problem])
    )
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    components = _plain_arrays(components)
    references = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "goq", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _plain_arrays(part: Any) -> Any:
    """Describe a tuple of equal types as an array of fixed length.

    Many generators of clients do not know ``prefixItems``.
    """
    if isinstance(part, list):
        return [_plain_arrays(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    items = part.get("prefixItems")
    if items and all(item == items[0] for item in items):
        part = {name: value for name, value in part.items() if name != "prefixItems"}
        part["items"] = items[0]
    return {name: _plain_arrays(value) for name, value in part.items()}


def _operation(route: Route, references: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, TEXT)}
                for name in _path_parameters(route)
            ),
            *(
                {
                    "name": p.name,
                    "in": place,
                    "required": p.required,
                    "description": p.description,
                    "schema": p.schema,
                }
                for place, some in (("query", route.parameters), ("header", route.headers))
                for p in some
            ),
        ],
        "responses": _responses(route, references),
    }
    if route.body is not None:
        fields = msgspec.structs.fields(route.body)
        content = {JSON: {"schema": references[route.body]}}
        if route.takes_frames:
            content[FRAMES] = _binary()
        operation["requestBody"] = {
            "required": any(field.required for field in fields),
            "content": content,
        }
    return operation


def _operation_id(route: Route) -> str:
    return f"{route.method.lower()}_{'_'.join(re.findall(r'[a-z0-9]+', route.path))}"


def _responses(route: Route, references: dict[Any, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done"}
    if route.answer is not None:
        done["content"] = {JSON: {"schema": references[route.answer]}}
        if route.gives_frames:
            done["content"][FRAMES] = _binary()
        if route.gives_lines:
            done["content"][NDJSON] = {"schema": {"type": "string"}}
    elif route.status == 200:
        done["content"] = {route.answer_type: {"schema": {"type": "string"}}}
    problem = {"application/problem+json": {"schema": references[Problem]}}
    codes: dict[str, list[str]] = {}
    for code in error_codes(route):
        codes.setdefault(str(BY_CODE[code].http_status), []).append(code)
    return {
        str(route.status): done,
        **{
            status: {"description": ", ".join(some), "content": problem}
            for status, some in sorted(codes.items())
        },
        "default": {"description": "Any other problem", "content": problem},
    }


def error_codes(route: Route) -> list[str]:
    """Return the error codes of a route: its own, and those of its input."""
    codes = list(route.errors)
    if route.parameters or route.body is not None or _path_parameters(route):
        codes.append("invalid_input")
    if route.body is not None:
        codes += ("too_large", "unsupported_media_type")
    return list(dict.fromkeys(codes))


def _path_parameters(route: Route) -> list[str]:
    return [part[1:-1] for part in route.path.split("/") if part.startswith("{")]


def _binary() -> dict[str, Any]:
    return {"schema": {"type": "string", "format": "binary"}}


def docs_page(routes: Sequence[Route]) -> str:
    """Return an HTML page with the routes; it loads nothing from elsewhere."""
    rows = "\n".join(
        f"<tr><td><b>{route.method}</b></td><td><code>{html.escape(route.path)}</code></td>"
        f"<td>{html.escape(route.summary)}</td><td>{_fields(route)}</td>"
        f"<td>{', '.join(f'<code>{code}</code>' for code in error_codes(route))}</td></tr>"
        for route in routes
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>goq {__version__} API</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
         padding: 0 1rem; color: #1b1b1b }}
 table {{ border-collapse: collapse; width: 100% }}
 td, th {{ border-bottom: 1px solid #ddd; padding: .4rem .6rem; text-align: left;
           vertical-align: top }}
 code {{ font-size: .9em }}
</style>
<h1>goq {__version__} API</h1>
<p>JSON in and out; errors are RFC 9457 problems with a stable <code>code</code>. The full
description is in <a href="/openapi.json">/openapi.json</a>.</p>
<table><tr><th>Method</th><th>Path</th><th>Does</th><th>Takes</th><th>Errors</th></tr>
{rows}
</table></html>
"""


def _fields(route: Route) -> str:
    names = [p.name if p.required else f"{p.name}?" for p in route.parameters]
    if route.body is not None:
        fields = msgspec.structs.fields(route.body)
        names += [f.encode_name if f.required else f"{f.encode_name}?" for f in fields]
    return ", ".join(f"<code>{html.escape(name)}</code>" for name in names)
