"""A real browser that looks at the console, and what tests ask of every page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WAIT_MS_MAX = 60_000
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Debian's Chromium with an empty profile until the block ends; skip without one."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium here")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A tab on the console of a node. It notes all that a page may not do.

    ``foreign`` are requests to other hosts, ``complaints`` what the browser logged as an error and
    dialogs that a script opened. Answers that the node refused are no complaint.
    """

    def __init__(self, browser: Any, url: str) -> None:
        self.url = url
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(
            viewport={"width": 1200, "height": 800}, reduced_motion="reduce"
        )
        self.context.set_default_timeout(WAIT_MS_MAX)
        self.page = self.context.new_page()
        self.page.on("request", self._note_request)
        self.page.on("console", self._note_log)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._note_dialog)

    def _note_request(self, request: Any) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(self.url + "/"):
            self.foreign.append(request.url)

    def _note_log(self, message: Any) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _note_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog says {dialog.message}")
        dialog.dismiss()

    def open(self, hash_: str, heading: str) -> None:
        """Go to a page of the console; return when its heading is there."""
        self.page.goto(f"{self.url}/ui/#{hash_}")
        self.page.get_by_role("heading", level=1, name=heading, exact=True).wait_for()

    def sees(self, text: str) -> None:
        """Return when the page shows a text."""
        self.page.get_by_text(text).locator("visible=true").first.wait_for()

    def press(self, name: str) -> None:
        """Press a button of this exact name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def fill(self, label: str, text: str) -> None:
        """Fill a field."""
        self.page.get_by_label(label, exact=True).fill(text)

    def width_over(self) -> int:
        """Return by how much the page is wider than the window."""
        root = "document.scrollingElement"
        over: int = self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
        return over

    def barriers(self) -> list[str]:
        """Return what axe-core finds that would keep people out."""
        axe = pytest.importorskip("axe_core_python")
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
        options = {"runOnly": {"type": "tag", "values": [*RULES]}, "resultTypes": ["violations"]}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def close(self) -> None:
        """Close the tab."""
        self.context.close()
