"""Tests for machines, needs and costs of a deployment."""

import math
from pathlib import Path

import pytest

from tests.exporter.checked_manifests import GIB, preflight_rows, write_checked
from tpuserve_exporter.deployment.capacity import Capacity, Demand
from tpuserve_exporter.deployment.checked_version import CheckedVersion
from tpuserve_exporter.deployment.machines import GkeMachine, VertexMachine
from tpuserve_exporter.deployment.plan import Plan, ServerNeeds
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.tpu import TpuTopology
from tpuserve_formats.price import Price

V5E = TpuTopology.parse("v5e:1x1")


def plan(version: CheckedVersion, demand: Demand | None = None, price: Price | None = None, model: str = "m") -> Plan:
    return Plan(model, version, GkeMachine.of(version.topology), demand.replicas if demand else 2, 9, demand, price)


@pytest.mark.parametrize(
    ("tpu", "accelerator", "machine_type", "chips"),
    [
        ("v5e:1x1", "tpu-v5-lite-podslice", "ct5lp-hightpu-1t", 1),
        ("v5litepod-4", "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", 4),
        ("v5e:2x4", "tpu-v5-lite-podslice", "ct5lp-hightpu-8t", 8),
        ("v6e:1x1", "tpu-v6e-slice", "ct6e-standard-1t", 1),
        ("v6e-8", "tpu-v6e-slice", "ct6e-standard-8t", 8),
        ("v4-8", "tpu-v4-podslice", "ct4p-hightpu-4t", 4),
        ("v5p-8", "tpu-v5p-slice", "ct5p-hightpu-4t", 4),
        ("tpu7x:1x1x1", "tpu7x", "tpu7x-standard-1t", 1),
        ("tpu7x:2x2x1", "tpu7x", "tpu7x-standard-4t", 4),
    ],
)
def test_a_topology_is_a_machine_of_gke(tpu: str, accelerator: str, machine_type: str, chips: int) -> None:
    machine = GkeMachine.of(TpuTopology.parse(tpu))
    assert (machine.accelerator, machine.machine_type, machine.chips) == (accelerator, machine_type, chips)


@pytest.mark.parametrize(
    ("tpu", "reason"),
    [
        ("v5e:4x4", "v5e:4x4 spans several machines, and a server runs on one. Use v5e:1x1, v5e:2x2, v5e:2x4"),
        ("v6e:1x2", "v6e:1x2 is not a machine of Google Cloud. Use v6e:1x1, v6e:2x2, v6e:2x4"),
        ("v5p:1x1x1", "v5p:1x1x1 is not a machine of Google Cloud. Use v5p:2x2x1"),
        ("tpu7x:2x2x2", "tpu7x:2x2x2 spans several machines, and a server runs on one. Use tpu7x:1x1x1, tpu7x:2x2x1"),
        ("v3:2x2", "GKE does not have v3:2x2. Use one of v4, v5e, v5p, v6e, tpu7x"),
    ],
)
def test_other_topologies_are_refused(tpu: str, reason: str) -> None:
    with pytest.raises(OptionConflict) as raised:
        GkeMachine.of(TpuTopology.parse(tpu))
    assert reason in str(raised.value)


def test_vertex_ai_has_two_families() -> None:
    assert VertexMachine.of(V5E).memory_gib == 48
    with pytest.raises(OptionConflict, match="Vertex AI has v5e and v6e, and not v5p:2x2x1"):
        VertexMachine.of(TpuTopology.parse("v5p:2x2x1"))


def test_the_startup_budget_follows_from_compilation_and_size(tmp_path: Path) -> None:
    rows = preflight_rows(compile_s=60.0)
    version = CheckedVersion.read(write_checked(tmp_path / "1", rows, other_bytes=int(5e9)), V5E)
    needs = ServerNeeds.of(version)
    assert needs.compile_s == 2 * 2 * 60.0
    assert needs.read_s == pytest.approx(100.0)
    assert needs.startup_s == math.ceil(120 + 240 + needs.read_s)


@pytest.mark.parametrize(("unlowered", "request_gib"), [((), 16 + 2), (("words",), 16 + 6)])
def test_host_memory_holds_the_weights_and_the_saved_model_if_it_is_loaded(
    tmp_path: Path, unlowered: tuple[str, ...], request_gib: int
) -> None:
    path = write_checked(tmp_path / "1", weights_bytes=2 * GIB, other_bytes=4 * GIB, unlowered=unlowered)
    needs = ServerNeeds.of(CheckedVersion.read(path, V5E))
    assert (needs.request_gib, needs.limit_gib) == (request_gib, request_gib + 16)


def test_cost_counts_every_server_and_every_row(tmp_path: Path) -> None:
    version = CheckedVersion.read(write_checked(tmp_path / "1"), V5E)
    demand = Demand(5000, Capacity(1000, 4, ("p99<=20ms",), "m"), headroom=1)
    priced = plan(version, demand, Price(1.2, "EUR"))
    assert priced.cost_per_hour == pytest.approx(6 * 1.2)
    # 20,000 predictions/s are 72 million an hour.
    assert priced.per_million_predictions == pytest.approx(7.2 / 72)
    assert priced.to_json()["cost"]["currency"] == "EUR"
    assert plan(version, demand).to_json()["cost"] is None
    assert plan(version, price=Price(1.2)).per_million_predictions is None


def test_notes_name_idle_devices_a_full_device_and_another_model(tmp_path: Path) -> None:
    assert plan(CheckedVersion.read(write_checked(tmp_path / "1"), V5E)).notes == []
    rows = preflight_rows("v5e:2x2", mesh={"data": 2, "model": 1}, needed_bytes=10 * GIB)
    version = CheckedVersion.read(write_checked(tmp_path / "2", rows), TpuTopology.parse("v5e:2x2"))
    demand = Demand(1, Capacity(1, 1, ("p99<=20ms",), "other"), headroom=0)
    idle, full, other = plan(version, demand).notes
    assert idle.startswith("idle devices: 2 of 4, because the version was checked with --mesh data=2. To use all of")
    assert f"tpuserve check {version.path} --tpu v5e:2x2 --mesh data=4 --json" in idle
    assert full.startswith("two versions do not fit on a device together")
    assert other == "the load test measured the model 'other', and the overlay serves 'm'"
