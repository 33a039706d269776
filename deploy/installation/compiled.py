"""`python -m deploy.installation.compiled DIRECTORY`: build a wheel of the server with its request path compiled.

`make compiled` and the Dockerfile run it, with the packages of requirements/compiler.lock. mypyc compiles the same
sources that run interpreted everywhere else (decision 123). pip prefers this wheel to the pure one where both fit.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SERVER: Final = ROOT / "server"
PACKAGE: Final = "tpuserve_server"

# The modules that each request passes. They follow rules, because mypyc compiles some forms to another meaning, without
# an error, and others to slow code. Tests find the forms with a *.
# - No mutable dataclass with slots, no subclass of threading.local* or of an abstract class, no base of an interpreted
#   class, no attribute of a class with a computed value, no field of type `object` in a NamedTuple*, no `slice` as an
#   index of bytes, no buffer of a library that is annotated as `bytes`.
# - No wait in an `except` or `finally` block*: meanwhile other coroutines see its exception as their own, and may raise
#   it.
# - The type of a message that may be a bytearray is `Body`: compiled code refuses a bytearray where it expects bytes.
#   In no module, a `cast` to a built-in type* hides this.
# - Objects of each request are plain classes with slots: a dataclass runs its `__init__` interpreted.
# - Compiled code gives each exception a traceback, also one that it catches. Steps of coroutines use `next` with a
#   default.
MODULES: Final = (
    "core/batching/arrays",
    "core/batching/backlog",
    "core/batching/batch",
    "core/batching/batcher",
    "core/batching/cost_model",
    "core/batching/demand",
    "core/batching/device_queue",
    "core/batching/device_share",
    "core/batching/loop_runner",
    "core/batching/objective",
    "core/batching/policies",
    "core/batching/queue",
    "core/batching/run_threads",
    "core/batching/runner",
    "core/batching/task",
    "core/models/registry",
    "core/models/servable_handle",
    "core/serving/acquired",
    "core/serving/acquired_ensemble",
    "core/serving/service",
    "core/system/at_once",
    "core/system/timers",
    "core/terms/batch_run",
    "core/terms/deadline",
    "core/terms/types",
    "core/terms/validation",
    "hosts/departed_clients",
    "hosts/endpoint",
    "hosts/grpc_calls",
    "hosts/grpc_frames",
    "hosts/grpc_headers",
    "hosts/grpc_status",
    "hosts/in_flight",
    "hosts/load_reports",
    "hosts/quick_calls",
    "hosts/quick_rpc",
    "hosts/refusals",
    "hosts/rest_calls",
    "observe/metrics/batch_measurements",
    "observe/metrics/histogram",
    "observe/metrics/measurements",
    "observe/metrics/prometheus",
    "observe/metrics/request_measurements",
    "observe/request_log/request_logs",
    "observe/requests/slow_requests",
    "protocols/exchange",
    "protocols/exchanges",
    "protocols/http/headers",
    "protocols/http/response",
    "protocols/interruption",
    "protocols/oip_rest/infer_lane",
    "protocols/oip_rest/route",
    "protocols/oip_rest/v2",
    "protocols/request_lane",
    "protocols/request_meter",
    "protocols/rpc",
    "protocols/tf_rest/predict_lane",
    "protocols/tf_rest/route",
    "protocols/tf_rest/v1",
    "wire/json/array_text",
    "wire/json/numbers",
    "wire/json/predict",
    "wire/layouts",
    "wire/oip/infer_json_response",
    "wire/oip/infer_layout",
    "wire/oip/infer_proto",
    "wire/predict_proto",
)
_CONFIGURATION: Final = """\
[mypy]
explicit_package_bases = true
namespace_packages = true
follow_imports = normal
ignore_missing_imports = true
disable_error_code = import-untyped
[mypy-tensorflow.*,tensorflow_serving.*,keras.*,jax.*,jaxlib.*,torch.*,ray.*,ai_edge_litert.*]
follow_imports = skip
"""
# setuptools reads the metadata from the server's pyproject.toml.
_SETUP: Final = """\
from setuptools import find_namespace_packages, setup
from mypyc.build import mypycify

setup(
    packages=find_namespace_packages(include=["{package}*"]),
    package_data={{"": ["*"]}},
    ext_modules=mypycify({arguments!r}, opt_level="3", debug_level="0", multi_file=True, target_dir="mypyc"),
)
"""
# The oldest glibc that the wheel runs with: Debian 10 and RHEL 8 have it. Zig links with that version's symbols.
_GLIBC: Final = "2.28"
_HEADERS: Final = Path(sysconfig.get_path("include"))


def compile_server(directory: Path) -> Path:
    """Build the wheel in `directory`, and return it. Takes minutes, and needs the headers of Python.

    Raises:
        subprocess.CalledProcessError: mypyc or the compiler failed. It has printed the reason.
    """
    for old in directory.glob(f"{PACKAGE}-*.whl"):
        old.unlink()
    build = directory / "build"
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(SERVER, build, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    configuration = build / "mypy.ini"
    configuration.write_text(_CONFIGURATION, encoding="utf-8")
    arguments = ["--config-file", configuration.name, *(f"{PACKAGE}/{module}.py" for module in MODULES)]
    (build / "setup.py").write_text(_SETUP.format(package=PACKAGE, arguments=arguments), encoding="utf-8")
    path = os.pathsep.join(str(ROOT / other) for other in ("formats", "clients/command"))
    # A compiler from a package, so that its version is locked, too. Without a target, Zig compiles for this processor.
    machine = platform.machine()
    compiler = f"{shlex.quote(sys.executable)} -m ziglang cc -target {machine}-linux-gnu.{_GLIBC}"
    environment = {
        **os.environ,
        "MYPYPATH": os.pathsep.join([str(build), path]),
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        # With hidden symbols, the modules call each other's functions directly. Debian's headers of Python include one
        # by its path from the directory above.
        "CFLAGS": f"-g0 -fvisibility=hidden -idirafter {_HEADERS.parent}",
    }
    tag = f"manylinux_{_GLIBC.replace('.', '_')}_{machine}"
    command = (sys.executable, "setup.py", "--quiet", "build_ext", f"--parallel={os.cpu_count() or 1}", "bdist_wheel")
    destination = ("--plat-name", tag, "--dist-dir", str(directory))
    subprocess.run((*command, *destination), cwd=build, check=True, env=environment)
    (wheel,) = directory.glob(f"{PACKAGE}-*.whl")
    return wheel


def unpack(wheel: Path, directory: Path) -> None:
    """Unpack a wheel, so that Python finds its modules first with `directory` in PYTHONPATH."""
    shutil.rmtree(directory, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)


def main(directory: Path) -> None:
    """Build the wheel in `directory`, and unpack it there."""
    if not (_HEADERS / "Python.h").exists():
        sys.exit("The headers of Python are missing. On Debian, run: apt-get install python3-dev")
    try:
        wheel = compile_server(directory)
    except subprocess.CalledProcessError:
        sys.exit("The compilation failed. The lines above have the reason.")
    unpack(wheel, directory / "unpacked")
    sys.stdout.write(f"{wheel}: {len(MODULES)} compiled modules, {wheel.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
