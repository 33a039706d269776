"""Tests for the energy of this machine, with files like the kernel's."""

import codecs
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loadtests.rapl_tree import RANGE_UJ, RaplTree
from tests.support.fakes import FakeClock
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli.monitoring import find_energy, is_loopback
from tpuserve_loadtests.cli.options import GeneratorOptions
from tpuserve_loadtests.monitoring.energy import (
    Energy,
    EnergyFound,
    EnergyWatch,
    Unmeasured,
    join_energies,
)

ABSENT = "this machine has no RAPL counters"
NOBODY = 65534


@pytest.fixture
def tree(tmp_path: Path) -> RaplTree:
    return RaplTree(tmp_path)


def reason(tree: RaplTree) -> str:
    found = EnergyWatch(tree.root).energy
    assert isinstance(found, Unmeasured)
    return found.reason


def test_packages_and_memory_add_up_and_other_zones_are_ignored(tree: RaplTree) -> None:
    clock = FakeClock()
    meter = EnergyWatch(tree.root, clock.monotonic_s)
    meter.read()
    clock.now_s += 1.0
    for number, energy_uj in {"0": 5_000_000, "0:0": 1, "0:1": 500_000, "1": 7_000_000, "1:0": 0, "2": 9}.items():
        tree.set(number, energy_uj)
    meter.read()
    assert isinstance(meter.energy, Energy)
    assert meter.energy.joules == pytest.approx({"package": 12.0, "dram": 0.5})


def test_a_counter_that_restarts_loses_no_energy(tree: RaplTree) -> None:
    tree.set("0", RANGE_UJ - 1_000_000)
    clock = FakeClock()
    meter = EnergyWatch(tree.root, clock.monotonic_s)
    for energy_uj in (RANGE_UJ - 1_000_000, 2_000_000, RANGE_UJ - 3_000_000, 4_000_000):
        tree.set("0", energy_uj)
        meter.read()
        clock.now_s += 10.0
    found = meter.energy
    assert isinstance(found, Energy)
    assert found.seconds == 30.0
    assert found.joules["package"] == pytest.approx(3.0 + (RANGE_UJ - 5_000_000) / 1e6 + 7.0)


def test_a_machine_without_memory_counters_has_packages_alone(tmp_path: Path) -> None:
    tree = RaplTree(tmp_path, {"0": "package-0-die-0"})
    clock = FakeClock()
    meter = EnergyWatch(tree.root, clock.monotonic_s)
    meter.read()
    clock.now_s += 4.0
    tree.set("0", 100_000_000)
    meter.read()
    found = meter.energy
    assert isinstance(found, Energy)
    assert (found.watts, found.total_watts) == ({"package": 25.0}, 25.0)


@pytest.mark.parametrize("zones", [{}, {"0": "psys"}, {"0": "core"}])
def test_a_machine_without_counters_is_reported(tmp_path: Path, zones: dict[str, str]) -> None:
    tree = RaplTree(tmp_path, zones)
    for root in (tree.root, tmp_path / "none"):
        assert EnergyWatch(root).energy == Unmeasured(ABSENT)


@pytest.mark.parametrize("name", ["name", "energy_uj", "max_energy_range_uj"])
def test_an_unreadable_file_is_named(tree: RaplTree, name: str) -> None:
    tree.file("1", name).unlink()
    tree.file("1", name).mkdir()
    assert re.search(rf"RAPL counter \S+/intel-rapl:1/{name} is unreadable: Is a directory", reason(tree))


@pytest.mark.parametrize("text", ["", "-5", "many"])
def test_a_counter_without_a_number_is_named(tree: RaplTree, text: str) -> None:
    tree.file("0:1").write_text(text)
    assert f"intel-rapl:0:1/energy_uj has no number: '{text}'" in reason(tree)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Run the test as a user who does not own the yielded directory. Other users may list it."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # Python remembers a codec that it cannot import, and the other user may not read root's Python.
    codecs.lookup("ascii")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        os.seteuid(0)


def test_a_counter_for_root_alone_is_named(unprivileged: Path) -> None:
    tree = RaplTree(unprivileged)
    tree.file("0").chmod(0o400)
    os.seteuid(NOBODY)
    assert re.search(r"this user may not read the RAPL counter \S+, which needs root by default", reason(tree))


def test_a_counter_that_fails_during_a_load_leaves_the_energy_unknown(tree: RaplTree) -> None:
    meter = EnergyWatch(tree.root, FakeClock().monotonic_s)
    meter.read()
    tree.file("0").unlink()
    meter.read()
    meter.read()
    found = meter.energy
    assert isinstance(found, Unmeasured)
    assert "energy_uj is unreadable: No such file or directory" in found.reason


def test_a_watch_measures_a_load(tree: RaplTree) -> None:
    with EnergyWatch(tree.root).during(Load(1.0, 0.0, 1)) as metered:
        tree.set_all(3_000_000)
    assert isinstance(metered.energy, Energy)
    assert metered.energy.joules == pytest.approx({"package": 6.0, "dram": 6.0})
    assert metered.energy.seconds > 0


def test_a_load_that_ends_in_its_warm_up_has_no_energy(tree: RaplTree) -> None:
    with EnergyWatch(tree.root).during(Load(1.0, 1000.0, 1)) as metered:
        tree.set_all(3_000_000)
    assert metered.energy == Unmeasured("the load ended before its measured time")


def test_several_runs_add_up() -> None:
    runs: list[EnergyFound] = [
        Energy(2.0, {"package": 10.0, "dram": 1.0}),
        Unmeasured("why"),
        Energy(3.0, {"package": 40.0}),
    ]
    assert join_energies(runs) == Energy(5.0, {"package": 50.0, "dram": 1.0})
    assert join_energies([None, Unmeasured("why")]) == Unmeasured("why")
    assert join_energies([]) is None


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("localhost:8500", True),
        ("LOCALHOST:8500", True),
        ("127.0.0.1:8500", True),
        ("127.8.0.1:8500", True),
        ("[::1]:8500", True),
        ("grpcs://localhost:8500", True),
        ("http://127.0.0.1:8501/models", True),
        ("oip+http://localhost:8501", True),
        ("oip-json+https://[::1]:8501", True),
        ("unix:/run/tpuserve.sock", True),
        ("server:8500", False),
        ("10.0.0.1:8500", False),
        ("localhost.example:8500", False),
        ("http://[fe80::1]:8501", False),
    ],
)
def test_the_energy_is_that_of_a_server_on_this_machine(address: str, is_here: bool) -> None:
    assert is_loopback(address) is is_here


def test_only_local_processes_and_addresses_have_an_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuserve_loadtests.monitoring.energy.ROOT", str(tmp_path))
    local = GeneratorOptions(1, 0, "0.0.0.0:5557", "note", 20)
    remote = GeneratorOptions(1, 2, "0.0.0.0:5557", "note", 20)

    def energy(addresses: list[str], generator: GeneratorOptions) -> object:
        with find_energy(addresses, generator).during(Load(1.0, 0.0, 1)) as metered:
            return metered.energy

    assert energy(["localhost:8500", "http://localhost:8501"], local) == Unmeasured(ABSENT)
    assert energy(["localhost:8500", "http://server:8501"], local) is None
    assert energy(["localhost:8500"], remote) is None
