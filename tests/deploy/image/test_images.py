"""Tests that build images with podman, list their files, and run them with as few rights as possible.

`make images` builds and runs the other targets, which take several GB.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
import tensorflow as tf

import tpuserve_command
from deploy.image.targets import TARGETS
from deploy.installation.compiled import MODULES
from tests.deploy.dockerfile import ROOT
from tests.deploy.image.container import Container, running_server
from tests.deploy.image.engine import Engine, running_engine
from tests.deploy.image.listing import Entry, entries
from tests.support import tflite_models
from tests.support.device_programs import double_and_add, write_programs
from tests.support.optional import cannot_run, needs
from tests.support.saved_models import save_function

pytestmark = [
    needs("mmdebstrap", "podman", "runc"), pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("image"),
]  # fmt: skip
BUILT = ("pjrt", "cpu")
# Subcommands of `tpuserve` in the images of servers.
COMMANDS = {"serve", "health", "key", "predict", "status", "protos"}
# Flags of a second start, with a model, inputs, and the sorted outputs.
SECOND = {
    "cpu": (
        ("--model_name=lite", "--model_base_path=/models/lite", "--prefer_tflite_model=true"),
        "lite", {"serving_default_x": [[2.0], [4.0]]}, [[[3.0], [4.0]]],
    ),
    "pjrt": ((), "model", {"x": [[1.0, 2.0]]}, [[[2.0, 3.0]], [[2.0, 4.0]]]),
}  # fmt: skip
OFFLINE = re.compile(r"connection|resolve|name resolution|unreachable|dns error|timed out", re.IGNORECASE)
# Directories that any user may write to, as in every Debian. With a read-only root, /tmp alone is writable.
SHARED = {"/run/lock", "/tmp", "/var/lock", "/var/tmp"}

# Trace the server for 0.2 s with the client's own grpc, and print the number of the trace's planes.
PROFILE = """
import grpc
from google.protobuf import message_factory
from tpuserve_server.wire.profiler_proto import PROFILER_SERVICE
request, response = (
    message_factory.GetMessageClass(PROFILER_SERVICE.file.message_types_by_name[name])
    for name in ("ProfileRequest", "ProfileResponse")
)
asked = request(opts={"version": 1, "host_tracer_level": 2, "duration_ms": 200}, emit_xspace=True)
with grpc.insecure_channel("localhost:8500") as channel:
    call = channel.unary_unary("/tensorflow.ProfilerService/Profile", request.SerializeToString, response.FromString)
    print(len(call(asked, timeout=60).xspace.planes))
"""


@contextmanager
def network() -> Iterator[None]:
    """Skip the test if the block fails because it cannot reach the mirror of Debian or the package index."""
    try:
        yield
    except RuntimeError as error:
        if OFFLINE.search(str(error)):
            cannot_run(f"needs the network: {str(error).strip().splitlines()[-1]}")
        raise


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if os.geteuid() != 0:
        cannot_run("needs root, to build images")
    with network(), running_engine() as engine:
        yield engine


@pytest.fixture(scope="module", params=BUILT)
def target(request: pytest.FixtureRequest, engine: Engine) -> str:
    """Build a target and return its name."""
    with network():
        engine.build(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def listing(engine: Engine, target: str) -> list[Entry]:
    with engine.files(target) as root:
        return list(entries(root))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save `model`, a SavedModel with device programs of the same functions, and `lite` for TensorFlow Lite."""
    folder = tmp_path_factory.mktemp("models")
    path = folder / "model/1"
    save_function(path, lambda x: {"double": x * 2, "added": x + 1}, tf.TensorSpec([None, 2], tf.float32, "x"))
    write_programs(path, double_and_add())
    tflite_models.save(folder / "lite/1", tflite_models.half_plus_two())
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def server(engine: Engine, target: str, models: Path) -> Iterator[Container]:
    """Start the image without flags and without a home directory for its user."""
    with running_server(engine, target, models) as server:
        yield server


def test_image_describes_itself(engine: Engine, target: str) -> None:
    described = engine.inspect(target)
    config = described["Config"]
    assert config["User"] == "65532:65532"
    assert set(config["ExposedPorts"]) == {"8500/tcp", "8501/tcp"}
    assert config["Entrypoint"][0] == "tpuserve-serve"
    assert config["StopSignal"] == "SIGTERM"
    assert {"MODEL_NAME=model", "MODEL_BASE_PATH=/models"} <= set(config["Env"])
    assert described["Healthcheck"]["Test"][:2] == ["CMD", "tpuserve-health"]
    assert config["Labels"]["org.opencontainers.image.title"].startswith("tpuserve-server")
    assert config["Labels"]["org.opencontainers.image.revision"] == "unknown"
    assert config["Labels"]["org.opencontainers.image.version"] == tpuserve_command.__version__
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_image_is_within_its_size(engine: Engine, target: str) -> None:
    size_bytes = engine.inspect(target)["Size"]
    print(f"{target}: {size_bytes / 1e9:.2f} GB")
    assert size_bytes <= TARGETS[target].largest_bytes


def test_no_program_gives_rights_to_its_caller(listing: list[Entry]) -> None:
    assert [entry.path for entry in listing if entry.sets_user] == []


def test_only_temporary_directories_are_writable_by_all(listing: list[Entry]) -> None:
    writable = [entry for entry in listing if entry.is_writable_by_all and not stat.S_ISCHR(entry.mode)]
    assert {entry.path for entry in writable} <= SHARED
    assert all(entry.mode & stat.S_ISVTX for entry in writable)


def test_files_of_the_server_belong_to_root(listing: list[Entry]) -> None:
    ours = [entry for entry in listing if entry.path.startswith("/opt/tpuserve")]
    assert len(ours) > 1000
    assert {entry.user for entry in ours} == {0}
    assert [entry.path for entry in ours if entry.mode & stat.S_IWGRP and not stat.S_ISLNK(entry.mode)] == []


def test_image_holds_no_installer_and_nothing_of_the_source_tree(listing: list[Entry]) -> None:
    paths = {entry.path for entry in listing}
    assert not paths & {"/build", "/opt/uv", "/opt/tpuserve/bin/pip", "/opt/tpuserve/bin/uv"}
    assert [path for path in paths if path.startswith("/opt/tpuserve") and path.endswith("/pip")] == []


def test_image_and_each_distribution_in_it_have_the_licence(engine: Engine, target: str) -> None:
    with engine.files(target) as root:
        packages = root / "opt/tpuserve/lib/python3.11/site-packages"
        found = [root / "licenses/LICENSE", *packages.glob("tpuserve_*.dist-info/licenses/LICENSE")]
        assert len(found) == 1 + len(TARGETS[target].projects)
        assert {path.read_text() for path in found} == {(ROOT / "LICENSE").read_text()}


def test_image_without_tensorflow_has_none_of_its_files(target: str, listing: list[Entry]) -> None:
    packages = PurePosixPath("/opt/tpuserve/lib/python3.11/site-packages")
    installed = {PurePosixPath(entry.path).name for entry in listing if PurePosixPath(entry.path).parent == packages}
    found = {name for name in installed if name.startswith(("tensorflow", "keras", "libclang"))}
    assert bool(found) == (target == "cpu")
    assert ("jax" in installed) == (target == "pjrt")


def test_request_path_of_the_server_is_compiled(listing: list[Entry]) -> None:
    paths = {entry.path for entry in listing}
    package = "/opt/tpuserve/lib/python3.11/site-packages/tpuserve_server"
    modules = [*MODULES, "startup/serve"]
    compiled = {name for name in modules if any(path.startswith(f"{package}/{name}.cpython-311-") for path in paths)}
    assert compiled == set(MODULES)


@pytest.mark.parametrize("address", ["localhost:8500", "http://localhost:8501"])
def test_server_predicts_on_the_stock_ports_with_as_few_rights_as_possible(server: Container, address: str) -> None:
    outputs = server.predict("model", {"inputs": {"x": [[1.0, 2.0]]}}, address)
    assert outputs == {"double": [[2.0, 4.0]], "added": [[2.0, 3.0]]}


def test_server_has_no_capability_and_a_user_that_the_image_does_not_know(server: Container) -> None:
    (user,) = (line.split()[1] for line in server.run("cat", "/proc/1/status").splitlines() if line.startswith("Uid:"))
    held = [line.split()[1] for line in server.run("cat", "/proc/1/status").splitlines() if line.startswith("Cap")]
    assert user == "1000730000"
    assert set(held) == {"0000000000000000"}


def test_root_is_read_only(server: Container) -> None:
    with pytest.raises(RuntimeError, match="Read-only file system"):
        server.run("touch", "/opt/tpuserve/file")


def test_server_traces_itself(server: Container) -> None:
    assert int(server.run("python", "-c", PROFILE)) > 0


def test_health_check_of_the_image_passes(server: Container) -> None:
    assert server.health() == 0


@pytest.mark.parametrize("command", ["tpuserve-serve", "tensorflow_model_server", "tf_serving_entrypoint.sh"])
def test_command_of_the_stock_image_runs(command: str, server: Container) -> None:
    assert server.run(command, "--help").startswith("Usage: ")


def test_tpuserve_command_starts_the_programs_of_the_image(server: Container) -> None:
    installed, _, missing = server.run("tpuserve", "--help").partition("Not installed:")
    assert set(re.findall(r"^  (\w+)  ", installed.partition("Commands:")[2], re.MULTILINE)) == COMMANDS
    assert "tpuserve-exporter" in missing
    for command in COMMANDS:
        assert server.run("tpuserve", command, "-h").startswith(f"Usage: tpuserve {command} ")


def test_sigterm_ends_the_server_after_its_drain(engine: Engine, target: str, models: Path) -> None:
    flags, model, inputs, outputs = SECOND[target]
    with running_server(engine, target, models, *flags, user="65532:65532", name="drained") as server:
        assert sorted(server.predict(model, {"inputs": inputs}).values()) == outputs
        assert server.terminate() == 0, server.log()
        assert "Traceback" not in server.log()


def test_wrong_flag_ends_the_container_with_the_reason(engine: Engine, target: str, models: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="No such option '--prot'"),
        running_server(engine, target, models, "--prot=1", name="refused"),
    ):
        pass
