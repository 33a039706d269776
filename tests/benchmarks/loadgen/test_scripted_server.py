from inspect import signature

import numpy as np
import pytest

from benchmarks.loadgen.loadtest_search import Found
from benchmarks.loadgen.scripted_server import ScriptedExecutor, ScriptedServable, script_device
from tests.support.fake_device import FakeServable
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.executors.tensorflow import TensorFlowOptions, on_demand


def test_batches_follow_each_other_without_a_gap_and_carry_the_models_answers() -> None:
    model = FakeServable()
    device = ScriptedServable(model, lambda rows: 1e-3 * rows)
    x = np.ones((3, 2), np.float32)
    first = device.dispatch("serving_default", {"x": x}, ("y",))
    # Simulate a minute of earlier work: the second batch begins when that ends, whatever the clock shows.
    device.free_s += 60
    second = device.dispatch("serving_default", {"x": x[:2]}, ("y",))
    assert second.finish_s - first.finish_s == pytest.approx(60 + 2e-3)
    np.testing.assert_array_equal(second.outputs["y"], 2 * x[:2])
    device.close()
    assert model.closed


def test_the_server_can_create_the_scripted_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    original = on_demand.TensorFlowOnDemand
    monkeypatch.setattr(on_demand, "TensorFlowOnDemand", original)  # restored after the test
    script_device(3.0, 1.0)
    scripted = on_demand.TensorFlowOnDemand
    assert signature(scripted).parameters.keys() == signature(original).parameters.keys()
    executor: object = scripted(TensorFlowOptions(), HostMemory(), None)
    assert isinstance(executor, ScriptedExecutor)


def test_a_search_that_found_nothing_is_wholly_wrong() -> None:
    assert Found(0, 190.0, 10, "", "").error(200.0) == pytest.approx(-0.05)
    assert Found(0, None, 3, "no rate holds", "").error(200.0) == -1.0
