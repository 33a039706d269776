"""`tpuserve_server.start`: starts a server in a separate process, and returns when it is ready."""

import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tpuserve_server.command.start_report import START_REPORT_VARIABLE
from tpuserve_server.launch.keyword_flags import Models, check_base_paths, check_keywords, flag_arguments, model_config
from tpuserve_server.launch.loopback_ports import reserve_port
from tpuserve_server.launch.running_server import DEFAULT_STOP_TIMEOUT_S, RunningServer
from tpuserve_server.launch.server_process import ServerProcess
from tpuserve_server.launch.start_progress import choose_show
from tpuserve_server.launch.start_wait import StartPipe, wait_until_ready

DEFAULT_START_TIMEOUT_S = 300.0


def start(
    models: Models | None = None,
    /,
    *,
    timeout_s: float = DEFAULT_START_TIMEOUT_S,
    log_path: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: object,
) -> RunningServer:
    """Start a server in a separate process and block until every model is ready.

        with tpuserve_server.start({"digits": "models/digits"}) as server:
            client = tpuserve_client.Client(server.grpc_address)

    `models` maps names to base paths. `settings` are the flags of `tpuserve serve` by name, such as
    `max_batch_size=64`, `allowed_batch_sizes=(1, 8)` and `device="cpu"`. You can give `model_config_file` instead of
    `models`.

    Four defaults differ from the command's. `bind_address` is 127.0.0.1, `port` and `rest_api_port` are free ports, and
    `max_num_load_retries` is 0. A model that fails to load is therefore reported at once.

    Progress appears in the notebook's cell, or on standard error. The server's output goes to `log_path`, or to a
    temporary file. In async code, call this function through `asyncio.to_thread`.

    Raises:
        StartFailed: a model cannot be served, an address is in use, or `timeout_s` passed. The server is stopped.
        TypeError: a setting is unknown. The message names the nearest one.
        ValueError: a setting has a wrong value, or no model is given.
        OSError: `log_path` cannot be written.
    """
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a finite number of seconds above 0; got {timeout_s!r}")
    check_keywords(models, settings)
    check_base_paths(models if models is not None else _single_model(settings))
    folder = Path(tempfile.mkdtemp(prefix="tpuserve-"))
    try:
        return _start(models, folder, Path(log_path or folder / "log"), timeout_s, progress, settings)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _start(
    models: Models | None,
    folder: Path,
    log: Path,
    timeout_s: float,
    progress: bool,
    settings: Mapping[str, object],
) -> RunningServer:
    started_s = time.monotonic()
    show = choose_show(progress)
    show("starting a server")
    flags = flag_arguments({**_defaults(models, folder), **settings})
    log.write_bytes(b"")
    pipe = StartPipe(folder / "start")
    try:
        try:
            process = ServerProcess(flags, log, {START_REPORT_VARIABLE: str(pipe.path)}, [pipe.writer])
        finally:
            pipe.close_writer()
        try:
            listening = wait_until_ready(pipe, process, log, timeout_s, show)
        except BaseException:
            # Close the pipe first. A server that blocks on a full pipe would not stop.
            pipe.close()
            process.stop(DEFAULT_STOP_TIMEOUT_S)
            raise
    finally:
        pipe.close()
    server = RunningServer(process, listening, log, folder)
    show(f"ready after {time.monotonic() - started_s:.1f} s: {server.describe()}")
    return server


def _defaults(models: Models | None, folder: Path) -> Mapping[str, object]:
    defaults: dict[str, object] = {
        "port": reserve_port(),
        "rest_api_port": reserve_port(),
        "bind_address": "127.0.0.1",
        "max_num_load_retries": 0,
    }
    if models is not None:
        defaults["model_config_file"] = folder / "models.config"
        (folder / "models.config").write_text(model_config(models), encoding="utf-8")
    return defaults


def _single_model(settings: Mapping[str, object]) -> Models:
    path = settings.get("model_base_path")
    if settings.get("model_config_file") or not isinstance(path, str | os.PathLike):
        return {}
    return {str(settings.get("model_name") or "default"): path}
