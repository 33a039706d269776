"""Tests for the goal of the benchmark of two servers behind Envoy."""

import pytest

from benchmarks.balancing.balance import Point, is_reached


def point(device: str = "scripted", way: str = "two behind Envoy", ratio: float = 1.9, failures: int = 0) -> Point:
    return Point(device, "grpc", way, 300 * ratio, ratio, failures, p99_ms=1, server_cpu_s=0.2, envoy_cpu_s=0.1)


def test_two_servers_on_a_device_without_cpu_reach_the_goal() -> None:
    assert is_reached([point(way="one", ratio=1.0), point(way="one behind Envoy", ratio=0.9), point()])


@pytest.mark.parametrize("missed", [point(ratio=1.7), point(way="one", failures=1)])
def test_low_ratio_or_a_failed_request_misses_the_goal(missed: Point) -> None:
    assert not is_reached([point(), missed])


def test_device_on_the_shared_cores_does_not_count() -> None:
    assert is_reached([point(), point("cpu", ratio=0.4, failures=10)])
