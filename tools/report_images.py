"""Draw the pictures of docs/images from made-up traffic: run it after changing a report.

``python tools/report_images.py [--export DIR]`` keeps the export it made of the traffic in DIR.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from report_traffic import traffic, write_export  # type: ignore[import-not-found]

from goq.pipeline.reports import retries as failures
from goq.pipeline.reports import skew, waits
from goq.pipeline.reports.html.charts import chart_of
from goq.pipeline.reports.tables import ExportedTables
from goq.pipeline.spark.session import spark_session

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def draw(session: SparkSession, export: Path) -> dict[str, str]:
    """Return the pictures by the names of their files."""
    tables = ExportedTables(session, str(export), [])
    messages, events, groups = map(tables.table, ("messages", "events", "groups"))
    reports = [
        waits.latency(messages, events),
        waits.fairness(messages, events),
        failures.retries(messages, events),
        skew.skew(messages, groups),
    ]
    wanted = {
        "latency.svg": (0, 0, "Latency: until first delivered"),
        "latency-by-time.svg": (0, 2, ""),
        "fairness.svg": (1, 0, "Fairness: the wait of each tenant"),
        "retries.svg": (2, 1, "Retries: why deliveries failed"),
        "skew.svg": (3, 0, "Skew: messages of each partition"),
    }
    return {
        name: chart_of(reports[report].sections[section], title=title, alone=True) + "\n"
        for name, (report, section, title) in wanted.items()
    }


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--export", type=Path)
    kept = parser.parse_args().export
    with tempfile.TemporaryDirectory() as folder:
        export = kept or Path(folder, "export")
        write_export(traffic(), export)
        session = spark_session("local[2]")
        try:
            IMAGES.mkdir(exist_ok=True)
            for name, picture in draw(session, export).items():
                (IMAGES / name).write_text(picture)
        finally:
            session.stop()


if __name__ == "__main__":
    main()
