"""Tests for what importing the package and starting its supervisor cost."""

import subprocess
import sys

import pytest

import tpuserve_server


def test_every_public_name_is_there() -> None:
    assert [getattr(tpuserve_server, name).__name__ for name in tpuserve_server.__all__] == tpuserve_server.__all__
    with pytest.raises(AttributeError, match="module 'tpuserve_server' has no attribute 'stop'"):
        _ = tpuserve_server.stop  # type: ignore[attr-defined]  # the mistake


def test_neither_the_package_nor_its_start_imports_a_framework() -> None:
    look = (
        "import sys, tpuserve_server\n"
        "print(sorted(name for name in sys.modules if name.startswith('tpuserve_server')))\n"
        "tpuserve_server.start\n"
        "print([name for name in ('grpc', 'pydantic', 'fastapi', 'tensorflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['tpuserve_server']", "[]"]


def test_the_process_that_keeps_the_sockets_imports_no_large_library() -> None:
    # It stays for the server's life, beside the process with the models.
    large = "numpy", "grpc", "fastapi", "h2corn", "cryptography", "tensorflow"
    look = f"import sys, tpuserve_server.startup.command\nprint([name for name in {large} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"]
