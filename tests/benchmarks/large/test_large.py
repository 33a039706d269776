"""Tests for the tables of the benchmark of large requests."""

import io

from rich.console import Console
from rich.table import Table

from benchmarks.large.copies import CopyCount
from benchmarks.large.large import copy_table, latency_table, throughput_table
from benchmarks.large.neighbours import Latency
from benchmarks.large.throughput import Throughput


def shown(table: Table) -> str:
    page = io.StringIO()
    Console(width=120, file=page).print(table)
    return page.getvalue()


def test_copies_of_the_host_and_of_the_kernel_are_shown_apart() -> None:
    page = shown(copy_table([CopyCount("Predict", "602 KB", server=1.04, host=1.07, kernel=0.0)]))
    line = next(line for line in page.splitlines() if "Predict" in line)
    assert line.replace("│", " ").split() == ["Predict", "602", "KB", "1.04", "1.07", "0.00"]


def test_throughput_is_compared_with_an_echo_and_one_copy() -> None:
    rates = {"server": 90.0, "echo": 125.0, "sink": 180.0}
    page = shown(throughput_table([Throughput("Predict", "8 MB", rates, copy_s=0.002)]))
    line = next(line for line in page.splitlines() if "Predict" in line)
    # A request of the echo takes 8 ms, and with the copy 10.
    assert line.replace("│", " ").split() == ["Predict", "8", "MB", "90", "125", "180", "100", "0.90", "0.50"]


def test_latencies_are_compared_with_those_without_neighbour() -> None:
    rows = [
        Latency("", 1.0, 2.0, 9.0, 100, 0),
        Latency("OIP JSON", 2.0, 5.0, 12.0, 80, 7),
    ]
    line = next(line for line in shown(latency_table(rows)).splitlines() if "OIP JSON" in line)
    assert line.replace("│", " ").split() == ["OIP", "JSON", "2.00", "5.00", "12.00", "2.5", "80", "7"]
