"""Tests that `tpuserve_server.start` starts real servers and leaves none running, however the caller ends."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import tpuserve_server
from tests.support.certificates import Authority
from tpuserve_client import Client, Tls
from tpuserve_server import RunningServer, StartFailed

pytestmark = [pytest.mark.slow]

start_light = functools.partial(tpuserve_server.start, prefer_tflite_model=True, progress=False)
END_TIMEOUT_S = 60.0


def ask(address: str, tls: Tls | None = None) -> float:
    with Client(address, tls=tls) as client:
        (answer,) = client.predict("half", {"serving_default_x": np.array([[4.0]], np.float32)}).outputs.values()
    return float(answer[0, 0])


def processes_of(pid: int) -> list[psutil.Process]:
    """Return the server and its child processes."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def config_of_absent_model(folder: Path) -> Path:
    """Write a configuration whose model the server accepts and waits for."""
    model = f'name: "late" base_path: "{folder / "late"}" model_platform: "tensorflow"'
    (folder / "models.config").write_text(f"model_config_list {{ config {{ {model} }} }}")
    return folder / "models.config"


@contextlib.contextmanager
def no_process_left() -> Iterator[None]:
    """Check that no process that the body starts runs after it."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_server_answers_at_its_addresses_until_the_context_ends(light_model: Path) -> None:
    with start_light({"half": light_model}) as server:
        assert ask(server.grpc_address) == ask(server.rest_address) == 4.0
        assert server.grpc_address.startswith("127.0.0.1:")
        assert server.rest_address.startswith("http://127.0.0.1:")
        assert repr(server) == f"<tpuserve server: gRPC {server.grpc_address}, REST {server.rest_address}>"
        running = processes_of(server.pid)
        # The group differs: a terminal's Ctrl-C and a notebook's interrupt go to the caller's process group.
        assert os.getpgid(server.pid) != os.getpgid(0)
    assert not server.is_running
    assert not [process for process in running if process.is_running()]
    assert server.stop() == 0
    assert "tpuserve is ready" in server.logs()
    host_name, _, port = server.grpc_address.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host_name, int(port))).close()


def test_a_server_has_only_what_it_was_asked_for(light_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with start_light(
        model_name="half",
        model_base_path=light_model,
        port=0,
        rest_api_port=0,
        grpc_socket_path=tmp_path / "grpc.sock",
        log_path=log,
    ) as server:
        assert server.grpc_address == f"unix:{tmp_path / 'grpc.sock'}"
        assert ask(server.grpc_address) == 4.0
        with pytest.raises(LookupError, match="rest_api_port=0"):
            _ = server.rest_address
        assert "tpuserve is ready" in log.read_text()


def test_a_server_with_tls_and_client_certificates_has_addresses_that_say_so(light_model: Path, tmp_path: Path) -> None:
    (tmp_path / "certificates").mkdir()
    authority = Authority(tmp_path / "certificates")
    texts = {
        "server_key": authority.server.key,
        "server_cert": authority.server.cert,
        "custom_ca": authority.ca,
    }
    fields = [f"{name}: {json.dumps(path.read_text())}" for name, path in texts.items()]
    (tmp_path / "ssl.config").write_text("\n".join([*fields, "client_verify: true"]))
    client = authority.issue("client.test")
    tls = Tls(ca=authority.ca, cert=client.cert, key=client.key)
    with start_light({"half": light_model}, ssl_config_file=tmp_path / "ssl.config") as server:
        assert server.grpc_address.startswith("grpcs://127.0.0.1:")
        assert server.rest_address.startswith("https://127.0.0.1:")
        assert ask(server.grpc_address, tls) == ask(server.rest_address, tls) == 4.0


def test_two_servers_run_at_once_and_from_async_code(light_model: Path) -> None:
    async def start_two() -> list[RunningServer]:
        starts = [asyncio.to_thread(start_light, {"half": light_model}) for _ in range(2)]
        return await asyncio.gather(*starts)

    # The threads that started the servers end with this loop, but the servers continue.
    first, second = asyncio.run(start_two())
    with first, second:
        assert len({first.grpc_address, first.rest_address, second.grpc_address, second.rest_address}) == 4
        first.stop()
        assert ask(second.grpc_address) == ask(second.rest_address) == 4.0


def test_wrong_settings_are_refused_as_the_command_refuses_them(light_model: Path, tmp_path: Path) -> None:
    with no_process_left():
        with pytest.raises(TypeError, match="did you mean 'max_batch_size'"):
            tpuserve_server.start({"half": light_model}, max_batchsize=8)
        with pytest.raises(ValueError, match="'--rest_api_port': 'x' is not a valid integer"):
            tpuserve_server.start({"half": light_model}, rest_api_port="x", progress=False)
        with pytest.raises(ValueError, match="batching_parameters_file is set without"):
            tpuserve_server.start({"half": light_model}, batching_parameters_file=tmp_path / "b", progress=False)
        with pytest.raises(ValueError, match="no model to serve"):
            tpuserve_server.start(progress=False)
        with pytest.raises(ValueError, match="timeout_s must be a finite number of seconds above 0; got 0"):
            tpuserve_server.start({"half": light_model}, timeout_s=0)


def test_a_port_that_is_taken_is_named(light_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, no_process_left():
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed, match=f"Cannot listen for REST on 127.0.0.1:{port}: the address is in use"):
            start_light({"half": light_model}, rest_api_port=port)


@pytest.mark.parametrize("others", [True, False], ids=["beside_one_that_serves", "alone"])
def test_a_model_that_does_not_load_is_named_with_the_reason(others: bool, light_model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad" / "7").mkdir(parents=True)
    (tmp_path / "bad" / "7" / "model.tflite").write_bytes(b"no model")
    models = {"broken": tmp_path / "bad"} | ({"half": light_model} if others else {})
    with no_process_left():
        with pytest.raises(StartFailed, match=r"Cannot serve broken version 7: \S+") as failure:
            start_light(models)
        assert "broken version: 7" in failure.value.log


def test_a_wait_that_is_too_long_ends_with_what_it_waited_for(tmp_path: Path) -> None:
    # On a slow machine the timeout may expire before the server listens or reads the directory.
    reason = r"(no version available for: late( \(its base path does not exist\))?|it is not listening yet)"
    waiting = rf"not ready after 8 s: {reason}\. Allow more time"
    with no_process_left(), pytest.raises(StartFailed, match=waiting):
        tpuserve_server.start(model_config_file=config_of_absent_model(tmp_path), timeout_s=8, progress=False)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt, even when a shell runs the tests in the background and ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_during_the_wait_leaves_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of_absent_model(tmp_path)
    interrupt = threading.Timer(4.0, os.kill, [os.getpid(), signal.SIGINT])
    with no_process_left():
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            tpuserve_server.start(model_config_file=config)
    assert capsys.readouterr().err.startswith("tpuserve: starting a server\n")


OWNER = """
import json, os, sys, time
import tpuserve_server

settings = {"prefer_tflite_model": True, "progress": False}
server = tpuserve_server.start({"half": sys.argv[1]}, **settings)
# A copy that outlives its owner, as workers of multiprocessing may.
copy = os.fork()
if copy == 0:
    if sys.argv[2] == "copy_exits":
        sys.exit()
    time.sleep(300)
print(json.dumps([server.pid, copy]), flush=True)
if sys.argv[2] == "copy_exits":
    os.waitpid(copy, 0)
    assert server.is_running
else:
    sys.stdin.read()
"""


def run_owner(model: Path, how: str) -> tuple[subprocess.Popen[str], list[psutil.Process], int]:
    """Run a program that starts a server. Return it, the server's processes, and a forked copy of the program."""
    owner = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", OWNER, str(model), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    pid, copy = json.loads(owner.stdout.readline())
    return owner, processes_of(pid), copy


def end(owner: subprocess.Popen[str], act: Callable[[], object]) -> int:
    with owner:
        act()
        return owner.wait(END_TIMEOUT_S)


def test_a_killed_owner_leaves_no_server(light_model: Path) -> None:
    owner, server, copy = run_owner(light_model, "copy_stays")
    try:
        assert end(owner, owner.kill) == -signal.SIGKILL
        _, alive = psutil.wait_procs(server, END_TIMEOUT_S)
        assert not alive
        assert psutil.pid_exists(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


def test_the_owner_s_exit_stops_the_server_and_a_forked_copy_s_does_not(light_model: Path) -> None:
    owner, server, _ = run_owner(light_model, "copy_exits")
    assert end(owner, lambda: None) == 0
    assert not psutil.wait_procs(server, END_TIMEOUT_S)[1]


def test_a_handle_that_is_dropped_stops_its_server(light_model: Path) -> None:
    with no_process_left():
        server = start_light({"half": light_model})
        folder = server.log_path.parent
        del server
        assert not folder.exists()


def test_starts_from_threads_share_nothing(light_model: Path) -> None:
    with ThreadPoolExecutor(2) as pool, no_process_left():
        starts = [pool.submit(start_light, {"half": light_model}) for _ in range(2)]
        servers = [start.result() for start in starts]
        assert [ask(server.grpc_address) for server in servers] == [4.0, 4.0]
        assert [server.stop() for server in servers] == [0, 0]
