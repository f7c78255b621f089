"""``goq export --register iceberg``: files of an export in the tables of a catalog."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cli.command import Run

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog.sql import SqlCatalog


def catalog_in(folder: Path) -> tuple[SqlCatalog, dict[str, str]]:
    """Return a catalog, and the environment in which pyiceberg knows it as ``lake``."""
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    told = {"PYICEBERG_CATALOG__LAKE__URI": uri, "PYICEBERG_CATALOG__LAKE__WAREHOUSE": warehouse}
    return SqlCatalog("lake", uri=uri, warehouse=warehouse), told


def test_what_is_exported_is_registered_and_then_only_what_is_new(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    catalog, told = catalog_in(tmp_path)
    words = ("export", topic, "--to", str(tmp_path / "out"), "--register", "iceberg", "lake")
    goq("produce", topic, stdin=b"a\nb\nc\n")
    goq("consume", topic, "--group", "g", "--max", "2")
    goq("export", topic, "--to", str(tmp_path / "out"))
    goq("produce", topic, stdin=b"d\n")
    first = json.loads(goq(*words, "--json", **told).stdout)
    assert all(first["registered"][table] > 0 for table in ("messages", "events", "groups"))
    values = catalog.load_table("goq.messages").scan().to_arrow().column("value").to_pylist()
    assert sorted(values) == [b"a", b"b", b"c", b"d"]
    again = goq(*words, "--json", **told)
    assert json.loads(again.stdout)["registered"] == {"messages": 0, "events": 0, "groups": 1}
    assert again.stderr == b""
    assert catalog.load_table("goq.messages").scan().to_arrow().num_rows == 4


def test_a_namespace_may_be_chosen(goq: Run, topic: str, tmp_path: Path) -> None:
    catalog, told = catalog_in(tmp_path)
    words = ("--to", str(tmp_path / "out"), "--register", "iceberg", "lake.raw")
    goq("produce", topic, stdin=b"a\n")
    goq("export", topic, *words, **told)
    assert catalog.load_table(("raw", "messages")).scan().to_arrow().num_rows == 1


def test_delta_tables_are_in_the_folder_of_the_export(goq: Run, topic: str, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("deltalake")
    words = ("export", topic, "--register", "delta", "--to", str(tmp_path / "out"))
    goq("produce", topic, stdin=b"a\nb\n")
    goq("consume", topic, "--group", "g", "--max", "1")
    first = json.loads(goq(*words, "--json").stdout)["registered"]
    assert all(first[table] > 0 for table in ("messages", "events", "groups"))
    goq("produce", topic, stdin=b"c\n")
    assert json.loads(goq(*words, "--json").stdout)["registered"]["messages"] == 1
    rows = polars.read_delta(str(tmp_path / "out" / "messages")).to_dicts()
    assert sorted(row["value"] for row in rows) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("hive", "lake"), 2, b"--register takes iceberg"),
        (("iceberg", "nowhere"), 2, b"PYICEBERG_CATALOG__NOWHERE__URI"),
        (("iceberg",), 2, b"--register"),
    ],
)
def test_what_cannot_be_registered_is_said_before_anything_is_written(
    goq: Run, topic: str, tmp_path: Path, words: tuple[str, ...], code: int, said: bytes
) -> None:
    goq("produce", topic, stdin=b"a\n")
    done = goq("export", topic, "--to", str(tmp_path / "out"), "--register", *words, code=code)
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "package"), [(("iceberg", "lake"), "pyiceberg"), (("delta",), "deltalake")]
)
def test_without_its_library_it_is_said_what_to_install(
    goq: Run, topic: str, tmp_path: Path, words: tuple[str, ...], package: str
) -> None:
    hidden = tmp_path / "hidden" / package
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(f"raise ModuleNotFoundError('no', name='{package}')")
    goq("produce", topic, stdin=b"a\n")
    path = os.pathsep.join((str(hidden.parent), os.environ.get("PYTHONPATH", "")))
    line = ("export", topic, "--to", str(tmp_path / "out"), "--register", *words)
    done = goq(*line, code=2, PYTHONPATH=path)
    assert done.stderr.count(b"\n") == 1
    assert f"pip install 'goq[{words[0]}]'".encode() in done.stderr
