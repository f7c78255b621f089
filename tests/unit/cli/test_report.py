"""How ``goq report`` prints: for people at a terminal, for pipes, and for programs."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.pipeline.reports.report import Report, Scope, Section, shown
from goq_cli.output.report import print_report
from goq_cli.session import SESSION

TIME = "2025-01-15T15:10:00.000000Z"
WAITS = ("time", "topic", "group", "messages", "p50_ms", "p90_ms", "p99_ms", "max_ms")
REPORT = Report(
    "latency",
    "How long?",
    [
        Section("Waits", WAITS, [(TIME, "telemetry", "warehouse", 12_345, *[1_388_000.0] * 4)]),
        Section("Others", ("a",), [], nothing="There are none."),
    ],
    verdict="Yes.",
    scope=Scope(["telemetry"], 12_345, TIME, TIME),
)


def test_a_terminal_of_80_columns_gets_units_and_no_broken_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_report(REPORT, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "How long?",
        "telemetry: 12,345 messages, 2025-01-15 15:10:00 UTC",
        "Yes.",
    ]
    assert lines[6].split() == [
        *("01-15", "15:10", "telemetry", "warehouse", "12,345"),
        *["23m8s"] * 4,
    ]
    assert lines[-1] == "There are none."


def test_a_time_has_its_seconds_if_it_has_any() -> None:
    assert shown("time", TIME) == "01-15 15:10"
    assert shown("time", TIME.replace(":00.", ":10.")) == "01-15 15:10:10"


def test_a_pipe_gets_values_in_the_units_of_their_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_report(REPORT, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "Waits:",
        "\t".join(WAITS),
        "\t".join([TIME, "telemetry", "warehouse", "12345", *["1388000.0"] * 4]),
    ]


def test_json_is_one_document_in_the_units_of_the_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SESSION, "json", True)
    print_report(REPORT, None)
    told = json.loads(capsys.readouterr().out)
    assert (told["report"], told["messages"], told["first"]) == ("latency", 12_345, TIME)
    assert told["sections"][0]["rows"][0]["p50_ms"] == 1_388_000.0
    assert told["sections"][1] == {"title": "Others", "rows": [], "complete": True}
