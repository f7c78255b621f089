"""The files of the console come with the node, and may do nothing but talk to it."""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
import zipfile

import pytest

from goq.console.assets import STATIC, Assets
from tests.support.node.fixtures import node
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import REPOSITORY

__all__ = ["node"]

ZIPPED_BYTES_MAX = 400 * 1024
NAMES = sorted(Assets().names())


def test_a_browser_that_opens_the_node_finds_the_console(node: RunningNode) -> None:
    for path in ("/", "/ui"):
        answer = node.request("GET", path)
        assert (answer.status, answer.headers["location"]) == (307, "/ui/")
    page = node.request("GET", "/ui/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b'src="app.js"' in page.body
    assert node.request("HEAD", "/ui/").body == b""
    assert node.request("POST", "/ui/").status == 405


def test_each_file_is_served_as_what_it_is_and_only_once(node: RunningNode) -> None:
    assert {"index.html", "app.js", "style.css", "vendor/preact.js"} <= {*NAMES}
    for name in NAMES:
        answer = node.request("GET", f"/ui/{name}")
        assert answer.status == 200, name
        assert answer.body == (STATIC / name).read_bytes()
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        tag = answer.headers["etag"]
        again = node.request("GET", f"/ui/{name}", headers={"If-None-Match": f'"x", W/{tag}'})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        other = node.request("GET", f"/ui/{name}", headers={"If-None-Match": '"x"'})
        assert other.status == 200


def test_no_page_runs_or_reaches_anything_else(node: RunningNode) -> None:
    for path in ("/", "/ui/", "/ui/app.js"):
        headers = node.request("GET", path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing.js",
        "/ui/vendor/VERSIONS",
        "/ui/vendor/LICENSE.htm",
        "/ui/..%2f__init__.py",
        "/ui/%2e%2e/assets.py",
        "/ui/../assets.py",
        "/ui/pages/..%2fapp.js",
        "/ui/pages/",
        "/ui//etc/passwd",
        "/ui/%2fetc%2fpasswd",
        "/ui/app.js%00",
    ],
)
def test_nothing_but_the_listed_files_is_served(node: RunningNode, path: str) -> None:
    answer = node.request("GET", path)
    assert answer.status in (400, 404), answer
    assert answer.json["code"] in ("route_not_found", "invalid_input", "not_found"), answer


def test_the_files_hold_no_data_so_they_need_no_token() -> None:
    with running_node(security={"auth": "tokens"}) as node:
        assert node.request("GET", "/").status == 307
        assert node.request("GET", "/ui/app.js").status == 200
        assert node.request("GET", "/v1/topics").status == 401


def test_the_libraries_are_as_their_authors_published_them() -> None:
    folder = STATIC / "vendor"
    lines = (folder / "VERSIONS").read_text().splitlines()[1:]
    listed = {line.split()[1]: line.split()[0] for line in lines}
    found = {path.name for path in folder.iterdir() if path.suffix in (".js", ".css")}
    assert {*listed} == found
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    for package in ("htm", "preact", "uplot"):
        assert (folder / f"LICENSE.{package}").stat().st_size > 500


def test_the_wheel_has_the_console_and_grows_little() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["goq"]
    packed = {path for pattern in patterns for path in (REPOSITORY / "goq").glob(pattern)}
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert {*files} <= packed
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.name)
    assert len(target.getvalue()) < ZIPPED_BYTES_MAX


def own_modules() -> list[str]:
    return [name for name in NAMES if name.endswith(".js") and not name.startswith("vendor/")]


@pytest.mark.parametrize("name", own_modules())
def test_no_module_makes_markup_of_text(name: str) -> None:
    source = (STATIC / name).read_text()
    for sink in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "srcdoc"):
        assert sink not in source
    assert not re.search(r"""["'`](https?:)?//""", source), "it names another host"
    assert len(source.splitlines()) <= 350
