"""Readers of an export's folder, as docs/spark.md shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

Rows = list[dict[str, Any]]


def by_pyarrow(folder: Path) -> Rows:
    return pq.read_table(folder).to_pylist()


def by_pandas(folder: Path) -> Rows:
    pandas = pytest.importorskip("pandas")
    return pandas.read_parquet(folder, dtype_backend="pyarrow").to_dict("records")


def by_duckdb(folder: Path) -> Rows:
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"SELECT * FROM read_parquet('{folder}/**/*.parquet', union_by_name = true)")
    return found.to_arrow_table().to_pylist()


def by_polars(folder: Path) -> Rows:
    polars = pytest.importorskip("polars")
    return polars.read_parquet(folder).to_dicts()


def whole(folder: Path) -> ds.Dataset:
    """Return the dataset with the columns of all files, not of the first alone."""
    files = ds.dataset(folder, partitioning="hive")
    schemas = [file.physical_schema for file in files.get_fragments()]
    return files.replace_schema(pa.unify_schemas([files.schema, *schemas]))


def by_dataset(folder: Path) -> Rows:
    return whole(folder).to_table().to_pylist()


def by_dataset_in_pandas(folder: Path) -> Rows:
    pandas = pytest.importorskip("pandas")
    found = whole(folder).to_table().to_pandas(types_mapper=pandas.ArrowDtype)
    return found.to_dict("records")


def by_dataset_in_polars(folder: Path) -> Rows:
    polars = pytest.importorskip("polars")
    return polars.scan_pyarrow_dataset(whole(folder)).collect().to_dicts()


Reader = Callable[[Path], Rows]
PLAIN: tuple[Reader, ...] = (by_pyarrow, by_pandas, by_duckdb, by_polars)
BY_NAME: tuple[Reader, ...] = (by_duckdb, by_dataset, by_dataset_in_pandas, by_dataset_in_polars)
"""Those that read columns which some files lack."""
