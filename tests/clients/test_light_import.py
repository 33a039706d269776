"""Tests for the modules that importing the client loads."""

import subprocess
import sys

import pytest

import tpuserve_client


@pytest.mark.parametrize("module", ["tpuserve_client", "tpuserve_client.grpc_transport", "tpuserve_client.cli"])
def test_import_brings_no_tensorflow_and_no_server(module: str) -> None:
    heavy = {"tensorflow", "tensorflow_serving", "tpuserve_server", "fastapi", "PIL"}
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not heavy & set(loaded)


def test_messages_are_loaded_with_the_first_grpc_client_alone() -> None:
    program = "import sys, tpuserve_client as t; t.Client('http://localhost:1').close(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"google.protobuf", "tpuserve_formats.messages.official", "pydantic", "google_crc32c"} & set(loaded)


def test_each_protocols_library_is_loaded_only_when_used() -> None:
    program = "import sys, tpuserve_client as t; t.Client('http://localhost:1').close(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "httpx" in loaded
    assert "grpc" not in loaded


@pytest.mark.parametrize(
    ("address", "loads", "omits"),
    [
        (
            "localhost:1",
            "tpuserve_formats.messages.official",
            {"tpuserve_client.oip_wire", "tpuserve_formats.messages.oip"},
        ),
        ("http://localhost:1", "tpuserve_client.rest_wire", {"tpuserve_client.oip_wire", "tpuserve_formats.oip"}),
        (
            "oip+http://localhost:1",
            "tpuserve_client.oip_rest_wire",
            {"google.protobuf", "grpc", "tpuserve_formats.messages"},
        ),
        (
            "oip+grpc://localhost:1",
            "tpuserve_formats.messages.oip",
            {"httpx", "tpuserve_formats.messages.official", "tpuserve_client.oip_rest_wire"},
        ),
    ],
)
def test_each_protocols_messages_are_loaded_only_when_used(address: str, loads: str, omits: set[str]) -> None:
    program = f"import sys, tpuserve_client as t; t.Client({address!r}).close(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert loads in loaded
    assert not omits & loaded


def test_import_brings_no_asyncio_and_no_library_of_commands() -> None:
    program = (
        "import sys, tpuserve_client as t; print('asyncio' in sys.modules); t.Client('http://localhost:1').close()"
    )
    program += "; print({'rich', 'click', 'pygments', 'httpx._main'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n") == ["False", "set()", ""]


def test_async_client_is_an_export_like_the_others() -> None:
    assert "AsyncClient" in dir(tpuserve_client)
    assert tpuserve_client.AsyncClient.__name__ == "AsyncClient"
    with pytest.raises(AttributeError, match="no attribute 'Asynclient'"):
        _ = tpuserve_client.Asynclient  # type: ignore[attr-defined]  # a misspelled name
