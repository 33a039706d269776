"""Tests for the tables of the benchmark of large requests."""

import io

from rich.console import Console
from rich.table import Table

from benchmarks.large.copies import CopyCost
from benchmarks.large.large import copy_table, latency_table
from benchmarks.large.neighbours import Latency


def shown(table: Table) -> str:
    page = io.StringIO()
    Console(width=120, file=page).print(table)
    return page.getvalue()


def test_the_difference_of_the_sizes_is_stated_in_copies() -> None:
    page = shown(copy_table([CopyCost("Predict", row_us=300.0, image_us=900.0, copy_us=50.0)]))
    assert "12.0" in page


def test_latencies_are_compared_with_those_without_neighbour() -> None:
    rows = [
        Latency("", 1.0, 2.0, 9.0, 100, 0),
        Latency("OIP JSON", 2.0, 5.0, 12.0, 80, 7),
    ]
    line = next(line for line in shown(latency_table(rows)).splitlines() if "OIP JSON" in line)
    assert line.replace("│", " ").split() == ["OIP", "JSON", "2.00", "5.00", "12.00", "2.5", "80", "7"]
