"""`python -m deploy.installation.compiled DIRECTORY`: copy the server to a directory, with its request path compiled.

`make compiled` runs it. mypyc compiles the same sources that run interpreted everywhere else (decision 123). Python
takes the compiled modules of the copy if it comes first in PYTHONPATH.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "tpuserve_server"

# The modules that each request passes, without those that mypyc cannot compile: dataclasses with slots, tuples with
# names, async generators, and base classes of interpreted ones.
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
    "core/models/registry",
    "core/serving/acquired",
    "core/serving/acquired_ensemble",
    "core/serving/service",
    "core/system/timers",
    "core/terms/validation",
    "hosts/departed_clients",
    "hosts/endpoint",
    "hosts/grpc_calls",
    "hosts/grpc_frames",
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
    "protocols/exchange",
    "protocols/http/headers",
    "protocols/http/response",
    "protocols/interruption",
    "protocols/raw_headers",
    "protocols/request_lane",
    "protocols/request_meter",
    "wire/json/array_text",
    "wire/json/predict",
    "wire/layouts",
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


def compile_server(directory: Path) -> list[Path]:
    """Copy the server's package to `directory`, and compile the modules of the copy. Return the libraries.

    Takes some minutes, and needs a C compiler.

    Raises:
        subprocess.CalledProcessError: mypyc or the compiler failed. It has printed the reason.
    """
    package = directory / PACKAGE
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "server" / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    build = directory.with_name(f"{directory.name}-build")
    build.mkdir(parents=True, exist_ok=True)
    configuration = build / "mypy.ini"
    configuration.write_text(_CONFIGURATION, encoding="utf-8")
    sources = [f"{PACKAGE}/{module}.py" for module in MODULES]
    script = (
        "from setuptools import setup\n"
        "from mypyc.build import mypycify\n"
        f"files = {['--config-file', str(configuration), *sources]!r}\n"
        f"extensions = mypycify(files, opt_level='2', debug_level='0', multi_file=True, target_dir={str(build)!r})\n"
        "setup(name='tpuserve-server', packages=[], ext_modules=extensions)\n"
    )
    command = (
        sys.executable,
        "-c",
        script,
        "--quiet",
        "build_ext",
        "--inplace",
        "--build-temp",
        str(build),
        "--build-lib",
        str(build),
    )
    jobs = (f"--parallel={os.cpu_count() or 1}",)
    path = os.pathsep.join([str(directory), *(str(ROOT / other) for other in ("formats", "clients/command"))])
    subprocess.run((*command, *jobs), cwd=directory, check=True, env={**os.environ, "MYPYPATH": path})
    return sorted(directory.rglob("*.so"))


if __name__ == "__main__":
    made = compile_server(Path(sys.argv[1]).resolve())
    sys.stdout.write(f"{len(made)} libraries, {sum(path.stat().st_size for path in made) / 1e6:.1f} MB\n")
