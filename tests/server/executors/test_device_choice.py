"""`--device`: who runs a version that has device programs and one that has none, and what is said about it."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.device_programs import double_and_add, read_manifest, write_device_manifest, write_programs
from tests.fake_device import FakeClock, FakeExecutor
from tpuserve_server.core.errors import FailedPrecondition, ResourceExhausted
from tpuserve_server.core.types import ServableId
from tpuserve_server.device_measurements import DeviceMeasurements
from tpuserve_server.executors.device_choice import DeviceChoice
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.executors.pjrt.options import PjrtOptions
from tpuserve_server.executors.pjrt.servable import PjrtServable

pytestmark = pytest.mark.timeout(60)
ID = ServableId("m", 1)


class Chosen:
    """A choice on a machine without accelerators, and what it told."""

    def __init__(self, wanted: str, make: Callable[[], PjrtExecutor] | None = None) -> None:
        self.saved_model = FakeExecutor()
        self.measured = DeviceMeasurements()
        self.choice = DeviceChoice(wanted, make or (lambda: self.pjrt(wanted)), self.saved_model, self.measured)

    def pjrt(self, wanted: str) -> PjrtExecutor:
        return PjrtExecutor(PjrtOptions(wanted), lambda: self.saved_model, self.measured, FakeClock())

    def device(self, path: Path) -> str:
        servable = self.choice.load(ID, path, allow_bfloat16=False)
        outputs = servable.dispatch("serving_default", {"x": np.ones((1, 2), np.float32)}, self.outputs).result()
        assert outputs[self.outputs[0]].tolist() == [[2, 2]]
        servable.close()
        return servable.device

    @property
    def outputs(self) -> tuple[str]:
        return ("y",) if self.saved_model.loaded else ("double",)

    def refusal(self, path: Path) -> str:
        with pytest.raises(FailedPrecondition) as caught:
            self.choice.load(ID, path, allow_bfloat16=False)
        assert not self.saved_model.loaded
        return caught.value.message


def no_jax() -> PjrtExecutor:
    raise ImportError("No module named 'jax'")


@pytest.fixture
def with_programs(tmp_path: Path) -> Path:
    return write_programs(tmp_path / "with", double_and_add())


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    path = write_programs(tmp_path / "refused", double_and_add())
    manifest = read_manifest(path)
    write_device_manifest(path, manifest["signatures"], {**manifest["device"], "calling_convention_version": 99})
    return path


@pytest.fixture
def without(tmp_path: Path) -> Path:
    return tmp_path


def test_cpu_runs_programs_on_the_cpu_where_there_are_some(with_programs: Path) -> None:
    chosen = Chosen("cpu")
    before = chosen.choice.runs_programs
    assert chosen.device(with_programs) == f"CPU (PJRT, jax {jax.__version__})"
    assert [before, chosen.choice.runs_programs] == [False, True]
    assert chosen.measured.choices()[ID] == ("cpu", "")


@pytest.mark.parametrize(
    ("wanted", "make", "version", "word", "reason"),
    [
        ("cpu", None, "without", "no_programs", "the version has no device programs"),
        ("cpu", no_jax, "with_programs", "no_jax", "JAX, which is not installed: pip install 'tpuserve-server[pjrt]'"),
        ("auto", None, "without", "no_programs", "the version has no device programs"),
        ("auto", no_jax, "with_programs", "no_jax", "pip install 'tpuserve-server[pjrt]'"),
        ("auto", None, "with_programs", "no_device", "PJRT found no TPU or GPU"),
        ("auto", lambda: Chosen("cpu").pjrt("cpu"), "refused", "programs_refused", "calling convention 99"),
    ],
)
def test_fallback_is_said_in_log_status_and_metric(
    wanted: str,
    make: Callable[[], PjrtExecutor] | None,
    version: str,
    word: str,
    reason: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = Chosen(wanted, make)
    with caplog.at_level(logging.INFO):
        device = chosen.device(request.getfixturevalue(version))
    assert device.startswith("fake: ")
    assert reason in device
    (record,) = [record for record in caplog.records if "runs by TensorFlow on the CPU" in record.message]
    assert reason in record.message
    assert (record.levelno == logging.WARNING) is (word in ("programs_refused", "no_jax"))
    assert chosen.measured.choices()[ID] == ("cpu", word)


@pytest.mark.parametrize(
    ("wanted", "version", "reason"),
    [
        ("tpu", "with_programs", "--device=tpu: PJRT found cpu only"),
        ("gpu", "with_programs", "--device=gpu: PJRT found cpu only"),
        ("tpu", "without", "--device=tpu: the version has no device programs"),
        ("cpu", "refused", "calling convention 99"),
    ],
)
def test_a_device_asked_for_by_name_is_had_or_the_load_fails(
    wanted: str, version: str, reason: str, request: pytest.FixtureRequest
) -> None:
    assert reason in Chosen(wanted).refusal(request.getfixturevalue(version))


class FullDevice(PjrtExecutor):
    """Has no memory left."""

    def load(self, servable_id: ServableId, path: Path, *, allow_bfloat16: bool) -> PjrtServable:
        raise ResourceExhausted("the device is out of memory")


def test_a_version_that_does_not_fit_the_device_does_not_go_to_the_cpu(with_programs: Path) -> None:
    measured = DeviceMeasurements()
    chosen = Chosen("auto", lambda: FullDevice(PjrtOptions("cpu"), FakeExecutor, measured, FakeClock()))
    with pytest.raises(ResourceExhausted):
        chosen.choice.load(ID, with_programs, allow_bfloat16=False)
    assert not chosen.saved_model.loaded


def test_jax_is_not_imported_for_a_version_without_programs(without: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "tpuserve_server.executors.device_choice")
    from tpuserve_server.executors.device_choice import DeviceChoice as Fresh

    chosen = Chosen("auto")
    servable = Fresh("auto", no_jax, chosen.saved_model, chosen.measured).load(ID, without, allow_bfloat16=False)
    assert servable.device == "fake: the version has no device programs"
