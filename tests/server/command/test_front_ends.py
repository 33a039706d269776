import pytest
from pydantic import ValidationError

from tests.server.command.test_serve_command import invoke
from tpuserve_server.command.front_ends import automatic_count, front_end_count, with_front_ends
from tpuserve_server.command.validation import read_settings, read_settings_json, settings_json
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.selection import Selection

ENVOY = Selection("envoy", "set by --host_backend")
PYTHON = Selection("python", "Envoy cannot run here: no libpython")


@pytest.mark.parametrize(
    ("cores", "count"), [(1, 1), (2, 1), (4, 1), (5, 1), (6, 2), (8, 3), (34, 16), (35, 16), (208, 16)]
)
def test_auto_leaves_two_cores_to_the_engine_and_stops_at_sixteen(cores: int, count: int) -> None:
    assert automatic_count(cores) == count


@pytest.mark.parametrize(
    ("selection", "options", "why"),
    [
        (PYTHON, HostOptions(), "needs the Envoy host, but the host is python (Envoy cannot run here: no libpython)"),
        (ENVOY, HostOptions(reuse_port=True), "and --reuse_port exclude each other"),
        (ENVOY, HostOptions(grpc_port=None, rest_port=None, grpc_socket_path="/s"), "needs a port"),
    ],
)
def test_what_prevents_several_front_ends_is_an_error_unless_auto(
    selection: Selection, options: HostOptions, why: str
) -> None:
    with pytest.raises(HostError) as raised:
        front_end_count(3, selection, options)
    assert why in str(raised.value)
    assert front_end_count("auto", selection, options) == front_end_count(1, selection, options) == 1


def test_front_ends_divide_the_limits_of_the_server() -> None:
    options = with_front_ends(HostOptions(max_connections=10, max_requests_per_s=100.0, max_heap_bytes=7), 4)
    assert (options.frontends, options.max_connections, options.max_requests_per_s) == (4, 3, 25.0)
    assert options.max_heap_bytes == 2
    assert with_front_ends(HostOptions(), 2).max_heap_bytes == 0


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("3", 3)])
def test_number_reaches_the_processes_of_the_server(text: str, value: object) -> None:
    settings = read_settings(model_base_path="/m", frontends=text)
    assert settings.listening.frontends == read_settings_json(settings_json(settings)).listening.frontends == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("many", "expected a whole number or auto, got 'many'"),
        ("0", "frontends must be auto or from 1 to 64; was 0"),
        ("65", "frontends must be auto or from 1 to 64; was 65"),
    ],
)
def test_wrong_number_is_named(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read_settings(model_base_path="/m", frontends=text)


def test_python_host_refuses_several_before_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    result = invoke("--model_base_path=/m", "--host_backend=python", TPUSERVE_SERVE_FRONTENDS="2")
    assert result.exit_code == 1
    assert caplog.messages[-1] == (
        "--frontends=2 needs the Envoy host, but the host is python (set by --host_backend). Use Envoy, or set "
        "--frontends=1."
    )
