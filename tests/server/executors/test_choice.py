"""Tests for the choice of the first candidate that can run a version, its messages, and `--device`."""

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.device_programs import FOLDER, double_and_add, read_manifest, write_device_manifest, write_programs
from tests.support.fake_device import FakeClock, FakeExecutor, FakeServable
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.errors import FailedPrecondition, Internal, InvalidArgument, ServingError
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.candidate import Refusal
from tpuserve_server.executors.choice import ExecutorChoice
from tpuserve_server.executors.pjrt import Device, PjrtOptions
from tpuserve_server.executors.pjrt.candidate import DevicePrograms
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.executors.pjrt.tracer import JaxTracer
from tpuserve_server.executors.plugin import MissingRuntime
from tpuserve_server.executors.tensorflow import TENSORFLOW, TensorFlowOptions
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

ID = ServableId("m", 1)


class SavedModels(FakeExecutor):
    """A fake executor instead of TensorFlow."""

    name = "TensorFlow on the CPU"
    kind = "cpu"

    def tracer(self) -> None:
        return None


class Chosen:
    """A choice on a machine without accelerators, and its messages."""

    def __init__(self, wanted: Device, make: Callable[[], PjrtExecutor] | None = None) -> None:
        self.saved_model = SavedModels()
        self.measured = DeviceMeasurements()
        self.programs = DevicePrograms(wanted, make or (lambda: self.pjrt(wanted)))
        self.choice = ExecutorChoice((self.programs, self.saved_model), self.measured)

    def pjrt(self, wanted: Device) -> PjrtExecutor:
        return PjrtExecutor(PjrtOptions(wanted), lambda: self.saved_model, self.measured, FakeClock())

    def device(self, path: Path) -> str:
        servable = self.choice.load(ID, VersionFiles(path))
        outputs = servable.dispatch("serving_default", {"x": np.ones((1, 2), np.float32)}, self.outputs).result()
        assert outputs[self.outputs[0]].tolist() == [[2, 2]]
        servable.close()
        return servable.device

    @property
    def outputs(self) -> tuple[str]:
        return ("y",) if self.saved_model.loaded else ("double",)

    def refusal(self, path: Path, servable_id: ServableId = ID) -> str:
        with pytest.raises(ServingError) as caught:
            self.choice.load(servable_id, VersionFiles(path))
        assert not self.saved_model.loaded
        return caught.value.message


def no_jax() -> PjrtExecutor:
    raise ModuleNotFoundError("No module named 'jax'", name="jax")


def on_cpu() -> PjrtExecutor:
    return Chosen("cpu").pjrt("cpu")


@dataclass(frozen=True)
class Spoilt:
    """A version whose programs cannot run, and the expected message."""

    path: Path
    label: str
    reason: str


def cut(folder: Path) -> Spoilt:
    path = write_programs(folder / "cut", double_and_add(), batch_sizes=(2,))
    file = path / FOLDER / "programs/device/b2.jaxexport"
    file.write_bytes(file.read_bytes()[:100])
    return Spoilt(path, "programs_refused", r"b2\.jaxexport is damaged")


def of_a_later_jax(folder: Path) -> Spoilt:
    path = write_programs(folder / "later", double_and_add(), batch_sizes=(2,))
    file = path / FOLDER / "programs/device/b2.jaxexport"
    file.write_bytes(file.read_bytes().replace(b"multiply_v1", b"multiply_v9"))
    return Spoilt(path, "programs_refused", r"b2\.jaxexport is damaged, or jax")


def of_another_convention(folder: Path) -> Spoilt:
    path = write_programs(folder / "convention", double_and_add())
    manifest = read_manifest(path)
    write_device_manifest(path, manifest["signatures"], {**manifest["device"], "calling_convention_version": 99})
    return Spoilt(path, "programs_refused", "calling convention 99")


def without_weights(folder: Path) -> Spoilt:
    path = write_programs(folder / "weights", double_and_add())
    (path / FOLDER / "weights.safetensors").write_bytes(b"")
    return Spoilt(path, "programs_refused", "weights.safetensors is truncated")


def that_does_not_compile(folder: Path) -> Spoilt:
    part = double_and_add()

    def call_absent(x: jax.Array, two: jax.Array, one: jax.Array) -> tuple[jax.Array, ...]:
        return jax.ffi.ffi_call("cu_threefry2x32_ffi", jax.ShapeDtypeStruct(x.shape, x.dtype))(x), x

    path = write_programs(folder / "absent", replace(part, function=call_absent), batch_sizes=(2,))
    return Spoilt(path, "device_failed", r"Compiling .*/b2\.jaxexport failed: .*cu_threefry2x32_ffi")


def that_does_not_fit(folder: Path) -> Spoilt:
    part = double_and_add()

    def fill_memory(x: jax.Array, two: jax.Array, one: jax.Array) -> tuple[jax.Array, ...]:
        return x * two, jnp.broadcast_to(x[0], (2**48, 2))

    path = write_programs(folder / "large", replace(part, function=fill_memory), batch_sizes=(2,))
    asked = (
        r"Running .*/b2\.jaxexport failed, the device is out of memory: .* \(2048\.0 TiB requested, the device does not"
    )
    return Spoilt(path, "no_memory", asked)


SPOILT = {
    one.__name__: one
    for one in (
        cut, of_a_later_jax, of_another_convention, without_weights, that_does_not_compile, that_does_not_fit
    )
}  # fmt: skip


@pytest.fixture
def with_programs(tmp_path: Path) -> Path:
    return write_programs(tmp_path / "with", double_and_add())


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    return of_another_convention(tmp_path).path


@pytest.fixture
def without(tmp_path: Path) -> Path:
    return tmp_path


def test_cpu_runs_programs_on_the_cpu_where_there_are_some(with_programs: Path) -> None:
    chosen = Chosen("cpu")
    before = chosen.programs.tracer()
    assert chosen.device(with_programs) == f"CPU (PJRT, jax {jax.__version__})"
    assert before is None
    assert isinstance(chosen.choice.tracer(), JaxTracer)
    assert chosen.measured.choices()[ID] == ("cpu", "")


@pytest.mark.parametrize(
    ("wanted", "make", "version", "label", "reason"),
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
    wanted: Device,
    make: Callable[[], PjrtExecutor] | None,
    version: str,
    label: str,
    reason: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = Chosen(wanted, make)
    with caplog.at_level(logging.INFO):
        device = chosen.device(request.getfixturevalue(version))
    assert device.startswith("fake: ")
    assert reason in device
    (record,) = [record for record in caplog.records if "uses TensorFlow on the CPU" in record.message]
    assert reason in record.message
    assert (record.levelno == logging.WARNING) is (label in ("programs_refused", "no_jax"))
    assert chosen.measured.choices()[ID] == ("cpu", label)


@pytest.mark.parametrize(
    ("wanted", "version", "reason"),
    [
        ("tpu", "with_programs", "--device=tpu: PJRT found only cpu"),
        ("gpu", "with_programs", "--device=gpu: PJRT found only cpu"),
        ("tpu", "without", "--device=tpu: the version has no device programs"),
        ("cpu", "refused", "calling convention 99"),
    ],
)
def test_a_device_asked_for_by_name_is_had_or_the_load_fails(
    wanted: Device, version: str, reason: str, request: pytest.FixtureRequest
) -> None:
    assert reason in Chosen(wanted).refusal(request.getfixturevalue(version))


class TestWhatKeepsAVersionFromTheDevice:
    """Tests that `auto` falls back to the SavedModel for every fault, with PJRT's CPU client as accelerator."""

    @pytest.fixture(params=[*SPOILT])
    def spoilt(self, request: pytest.FixtureRequest, tmp_path: Path) -> Spoilt:
        made: Spoilt = SPOILT[request.param](tmp_path)
        return made

    def test_auto_falls_back_and_says_why(self, spoilt: Spoilt, caplog: pytest.LogCaptureFixture) -> None:
        chosen = Chosen("auto", on_cpu)
        with caplog.at_level(logging.INFO):
            device = chosen.device(spoilt.path)
        assert device.startswith("fake: ")
        assert re.search(spoilt.reason, device)
        assert str(spoilt.path) not in device
        assert "\n" not in device
        (record,) = [record for record in caplog.records if "uses TensorFlow on the CPU" in record.message]
        assert record.levelno == logging.WARNING
        assert re.search(spoilt.reason, record.message)
        assert chosen.measured.choices()[ID] == ("cpu", spoilt.label)

    def test_a_device_by_its_name_fails_the_load(self, spoilt: Spoilt) -> None:
        message = Chosen("cpu").refusal(spoilt.path)
        assert message.startswith("--device=cpu: ")
        assert re.search(spoilt.reason, message)

    def test_beside_another_version_of_the_model_the_load_fails_until_that_has_gone(
        self, spoilt: Spoilt, with_programs: Path
    ) -> None:
        chosen = Chosen("auto", on_cpu)
        before = chosen.choice.load(ID, VersionFiles(with_programs))
        message = chosen.refusal(spoilt.path, ServableId("m", 2))
        assert re.search(spoilt.reason, message)
        assert message.endswith("another version of m is on the device and stays there")
        chosen.choice.load(ServableId("other", 1), VersionFiles(spoilt.path)).close()
        before.close()
        chosen.choice.load(ServableId("m", 2), VersionFiles(spoilt.path)).close()
        assert chosen.measured.choices()[ServableId("m", 2)] == ("cpu", spoilt.label)


def test_where_the_saved_model_fails_too_both_reasons_are_said(tmp_path: Path) -> None:
    chosen = Chosen("auto", on_cpu)
    tensorflow = TensorFlowOnDemand(TensorFlowOptions(), HostMemory())
    chosen.choice = ExecutorChoice((chosen.programs, tensorflow), chosen.measured)
    assert re.search(
        r"SavedModel.* \(the device programs also failed: .*b2\.jaxexport is damaged",
        chosen.refusal(cut(tmp_path).path),
    )


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            RuntimeError("jaxlib version 0.9 is incompatible\nwith jax"),
            "PJRT cannot start: RuntimeError: jaxlib .* incomp",
        ),
        (OSError("libcuda.so.1: cannot open shared object file"), "PJRT cannot start: OSError: libcuda"),
    ],
)
def test_auto_survives_whatever_a_plugin_raises(raised: Exception, reason: str, with_programs: Path) -> None:
    def make() -> PjrtExecutor:
        raise raised

    chosen = Chosen("auto", make)
    device = chosen.device(with_programs)
    assert re.search(reason, device)
    assert "\n" not in device
    assert chosen.measured.choices()[ID] == ("cpu", "no_device")


def test_jax_is_not_imported_for_a_version_without_programs(without: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "tpuserve_server.executors.pjrt.candidate")
    from tpuserve_server.executors.pjrt.candidate import DevicePrograms as Fresh

    chosen = Chosen("auto")
    choice = ExecutorChoice((Fresh("auto", no_jax), chosen.saved_model), chosen.measured)
    servable = choice.load(ID, VersionFiles(without))
    assert servable.device == "fake: the version has no device programs"


class Scripted:
    """A candidate with scripted behaviour."""

    kind = "cpu"

    def __init__(self, name: str, loaded: Servable | Refusal | ServingError) -> None:
        self.name = name
        self.loaded = loaded

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        if isinstance(self.loaded, ServingError):
            raise self.loaded
        return self.loaded

    def tracer(self) -> None:
        return None


def scripted(*loaded: Servable | Refusal | ServingError) -> tuple[ExecutorChoice, DeviceMeasurements]:
    measured = DeviceMeasurements()
    candidates = [Scripted(f"candidate {number}", one) for number, one in enumerate(loaded)]
    return ExecutorChoice(candidates, measured), measured


NO_DISK = Refusal(FailedPrecondition("no disk"), "no_disk")
BROKEN = Refusal(FailedPrecondition("it is broken"), "broken", failed="its parts", level=logging.WARNING)
SILENT = Refusal(FailedPrecondition("nothing for it"))


def test_the_first_candidate_that_does_not_refuse_is_taken(without: Path) -> None:
    taken = FakeServable()
    choice, measured = scripted(taken, FakeServable())
    assert choice.load(ID, VersionFiles(without)) is taken
    assert not measured.choices()


def test_every_reason_is_reported_in_order_and_the_first_is_the_metrics(
    without: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choice, measured = scripted(NO_DISK, SILENT, BROKEN, FakeServable())
    assert choice.load(ID, VersionFiles(without)).device == "fake: no disk; it is broken"
    assert [record.message for record in caplog.records] == [f"{ID} uses candidate 3: no disk; it is broken"]
    assert measured.choices()[ID] == ("cpu", "no_disk")


def test_a_refusal_without_a_label_is_not_reported(without: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = FakeServable()
    choice, measured = scripted(SILENT, taken)
    with caplog.at_level(logging.INFO):
        assert choice.load(ID, VersionFiles(without)) is taken
    assert not caplog.records
    assert not measured.choices()


def test_an_error_is_final_and_names_what_failed_before(without: Path) -> None:
    choice, _ = scripted(NO_DISK, BROKEN, InvalidArgument("it is no model"), FakeServable())
    with pytest.raises(InvalidArgument, match=r"^it is no model \(its parts also failed: it is broken\)$"):
        choice.load(ID, VersionFiles(without))


def test_a_missing_runtime_is_reported_with_every_reason_and_remedy(without: Path) -> None:
    no_device = Refusal(FailedPrecondition("no TPU"), "no_device", remedy="--device=cpu works")
    choice, _ = scripted(SILENT, no_device, BROKEN, TENSORFLOW.missing("it needs"), FakeServable())
    with pytest.raises(MissingRuntime, match=r"\[tensorflow\]' \(no TPU; --device=cpu works; it is broken\)$"):
        choice.load(ID, VersionFiles(without))
    host_part = Refusal(TENSORFLOW.missing("it needs"), "programs_refused", failed="the device programs")
    choice, _ = scripted(SILENT, host_part, TENSORFLOW.missing("it needs"))
    with pytest.raises(MissingRuntime, match=r"\[tensorflow\]'$"):
        choice.load(ID, VersionFiles(without))


def test_where_all_refuse_the_load_fails_with_the_last_reason(without: Path) -> None:
    choice, _ = scripted(NO_DISK, SILENT)
    with pytest.raises(FailedPrecondition, match="nothing for it"):
        choice.load(ID, VersionFiles(without))
    with pytest.raises(Internal, match="No executor can be profiled"):
        choice.tracer()
