"""Tests for the turns of the client benchmark: every library predicts with the benchmark's server."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.client.client import running_server
from benchmarks.client.imports import measure_import
from benchmarks.client.libraries import ASYNCIO, BLOCKING, OWN
from benchmarks.client.turns import Load, in_threads, loads, measure_burst, measure_round, rotated
from benchmarks.harness import mlp_model
from benchmarks.harness.targets import Protocol
from tpuserve_client import Prediction


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[Protocol, int]]:
    with running_server() as ports:
        yield ports


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_client_gets_the_prepared_prediction(protocol: Protocol, ports: dict[Protocol, int]) -> None:
    async def predict_asyncio() -> object:
        async with ASYNCIO[protocol][OWN](ports[protocol]) as call:
            return await call()

    with BLOCKING[protocol][OWN](ports[protocol]) as call:
        predictions = [call(), asyncio.run(predict_asyncio())]
    for prediction in predictions:
        assert isinstance(prediction, Prediction)
        np.testing.assert_allclose(prediction[mlp_model.OUTPUT], np.asarray(mlp_model.example()), atol=1e-6)


@pytest.mark.parametrize("load", loads(), ids=str)
def test_each_library_takes_a_turn_under_each_load(load: Load, ports: dict[Protocol, int]) -> None:
    turns = list(measure_round(load, ports, calls=1, number=1))
    assert {turn.library for turn in turns} == set(BLOCKING[load.protocol]) == set(ASYNCIO[load.protocol])
    assert all(turn.cpu_us > 0 for turn in turns)


def test_libraries_take_the_first_turn_in_rotation() -> None:
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("library", ["tpuserve_client", "httpx"])
def test_a_burst_measures_cold_and_warm_calls(library: str, ports: dict[Protocol, int]) -> None:
    burst = measure_burst(library, ports["rest"], 3)
    assert burst.cold_ms > 0
    assert burst.warm_ms > 0


def test_threads_call_as_often_as_asked_and_report_a_failure() -> None:
    names: list[str] = []
    in_threads(lambda: names.append(threading.current_thread().name), callers=2, each=3)
    assert sorted(names) == ["caller-0"] * 3 + ["caller-1"] * 3
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda: 1 / 0, callers=2, each=1)


def test_an_import_costs_cpu() -> None:
    assert measure_import("import decimal") > 0
