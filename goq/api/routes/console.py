"""Routes of the web console: its files, which hold no data and need no token.

The policy in each answer lets a page run the console's own modules and nothing else, and connect to
its own node only. No page of another site can show the console in a frame. Nothing can make text
into a script: the browser refuses it (trusted types).
"""

from __future__ import annotations

from typing import Final

from goq.api.needs import OPEN
from goq.api.route import Route
from goq.console.assets import Asset, Assets
from goq.errors import RouteNotFound
from goq.http.message import Request, Response

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_HOME: Final = "/ui/"
_INDEX: Final = "index.html"


class ConsoleRoutes:
    """The files of the console, and the way to it."""

    def __init__(self) -> None:
        self._assets = Assets()

    def routes(self) -> list[Route]:
        """Return the declarations; OpenAPI leaves them out, they are for browsers."""
        page = "text/html"
        handlers = (
            ("/", self.lead, "Leads to the console"),
            ("/ui", self.lead, "Leads to the console"),
            (_HOME, self.index, "The console"),
            ("/ui/{file}", self.file, "A file of the console"),
            ("/ui/{folder}/{file}", self.file, "A file of the console"),
        )
        return [
            Route("GET", path, handler, text, answer_type=page, ignores_query=True, needs=OPEN)
            for path, handler, text in handlers
        ]

    def lead(self, _request: Request) -> Response:
        """Redirect to the console."""
        return Response(307, b"", headers={"Location": _HOME, **_HEADERS})

    def index(self, request: Request) -> Response:
        """Return the page of the console."""
        return self.file(request, _INDEX)

    def file(self, request: Request, *parts: str) -> Response:
        """Return a file; 304 if the browser has it."""
        name = "/".join(parts)
        asset = self._assets.get(name)
        if asset is None:
            raise RouteNotFound(f"the console has no file {name[:200]!r}; it begins at {_HOME}")
        headers = {"ETag": asset.tag, **_HEADERS}
        if _is_known(request, asset):
            return Response(304, b"", headers=headers)
        return Response(200, asset.content, asset.content_type, headers)


def _is_known(request: Request, asset: Asset) -> bool:
    """Whether the browser has this version of a file."""
    tags = request.headers.get("if-none-match", "").split(",")
    return asset.tag in (tag.strip().removeprefix("W/") for tag in tags)
