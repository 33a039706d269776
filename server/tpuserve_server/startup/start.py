"""`tpuserve_server.start`: starts a server in a separate process, and returns when it is ready."""

import difflib
import json
import math
import os
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from tpuserve_server.core.models.configuration_rules import describe_without_version
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.hosts.application import Listening
from tpuserve_server.startup.running_server import DEFAULT_STOP_TIMEOUT_S, RunningServer, ServerProcess
from tpuserve_server.startup.settings import flags
from tpuserve_server.startup.start_report import START_REPORT_VARIABLE, StartReport


class StartFailed(Exception):
    """Error of a server that did not become ready. The server is stopped.

    The message names the model or the setting, and the reason. `log` is the server's complete log.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


Show: TypeAlias = Callable[[str], None]


def choose_show(progress: bool) -> Show:
    """Return the function that shows a progress text. In a notebook, each text replaces the previous one."""
    if not progress:
        return lambda text: None
    return _in_cell() if _in_notebook() else lambda text: print(f"tpuserve: {text}", file=sys.stderr)  # noqa: T201


def _in_notebook() -> bool:
    """Return whether IPython runs as a kernel. A notebook has imported IPython already; this function never does."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _in_cell() -> Show:
    from IPython.display import display

    handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)


# Timeout for the process to exit after its pipe has ended.
_END_TIMEOUT_S = 10.0
_USAGE = 2


class StartPipe:
    """Named pipe, opened for reading, and for writing by the server that inherits `writer`."""

    def __init__(self, path: Path) -> None:
        """Create the pipe. Raises OSError."""
        os.mkfifo(path, 0o600)
        self.path = path
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.writer = os.open(path, os.O_WRONLY)
        self._rest = b""

    def close_writer(self) -> None:
        """Close this process's writer once the server has inherited it. The pipe then ends when the server does."""
        os.close(self.writer)

    def close(self) -> None:
        """Close the reader's end. The server's next report fails and is its last. Does nothing the second time."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def read(self, timeout_s: float) -> list[StartReport] | None:
        """Block until reports arrive and return them: none after `timeout_s` seconds, None at the end of the pipe."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return []
        data = os.read(self._reader, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [StartReport.from_json(line.decode()) for line in lines]


def wait_until_ready(pipe: StartPipe, process: ServerProcess, log: Path, timeout_s: float, show: Show) -> Listening:
    """Block until every model is available, and return the addresses.

    Raises:
        StartFailed: the server is not ready. The message has the server's own reason if it reported one.
        ValueError: the server refused a setting.
    """
    deadline_s = time.monotonic() + timeout_s
    waiting = "it is not listening yet"
    while (remaining_s := deadline_s - time.monotonic()) > 0:
        reports = pipe.read(remaining_s)
        if reports is None:
            raise _ended(process, log)
        for report in reports:
            if report.settled and report.failures:
                raise StartFailed(f"Cannot serve {'; '.join(report.failures)}", _read(log))
            if report.settled:
                return report.listening
            waiting = "; ".join([report.waiting, *report.failures])
            show(f"the server is listening; {waiting}")
    raise StartFailed(
        f"The server was not ready after {timeout_s:g} s: {waiting}. Allow more time with timeout_s. Its last log "
        f"line: {_last_line(log)}",
        _read(log),
    )


def _ended(process: ServerProcess, log: Path) -> Exception:
    status = process.wait(_END_TIMEOUT_S)
    last = _last_line(log)
    # Click and the hosts start an error message with these prefixes.
    reason = last.removeprefix("Error: ").removeprefix("tpuserve: ")
    if status == _USAGE:
        return ValueError(reason)
    if reason != last:
        return StartFailed(reason, _read(log))
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return StartFailed(f"The server ended {how} before it was ready. Its last log line: {last}", _read(log))


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _read(log).splitlines() if line.strip()]
    return lines[-1] if lines else "none"


Models: TypeAlias = Mapping[str, str | os.PathLike[str]]

_NAMES = frozenset(flag.name for flag in flags())
_NAME_MODELS = ("model_name", "model_base_path", "model_config_file")


def check_keywords(models: Models | None, settings: Mapping[str, object]) -> None:
    """Raise TypeError for an unknown keyword, and ValueError if models are missing or named twice."""
    for name in settings:
        if name not in _NAMES:
            nearest = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "tpuserve serve --help lists the flags"
            raise TypeError(f"start() has no setting {name!r}; {hint}")
    if models is None:
        return
    if not isinstance(models, Mapping):
        raise TypeError(f"models maps names to base paths, such as {{'digits': 'models/digits'}}; got {models!r}")
    if not models:
        raise ValueError("models is empty. Pass at least one model and its base path")
    if conflicting := [name for name in _NAME_MODELS if settings.get(name) is not None]:
        raise ValueError(f"models and {conflicting[0]} both configure models. Set only one of them")


def check_base_paths(base_paths: Models) -> None:
    """Raise StartFailed for a local base path without a version. The server would wait for one forever."""
    for name, base_path in base_paths.items():
        path = os.fspath(base_path)
        if "://" in path:
            continue
        try:
            versions = LocalStorage(lambda _: None).find_versions(path)
            if not versions:
                file = "" if versions is None else _find_version_file(path)
                wrong = describe_without_version(path, exists=versions is not None, file=file)
                raise StartFailed(f"Cannot serve {name}: its {wrong}.")
        except OSError as error:
            raise StartFailed(f"Cannot serve {name}: its base path {path} cannot be read: {error.strerror}.") from error


def _find_version_file(base_path: str) -> str:
    # A module imports pydantic, which only this error message needs.
    from tpuserve_server.executors.catalogue import model_files
    from tpuserve_server.versions.completeness import ModelFiles

    return ModelFiles(model_files()).find_version_file(os.listdir(base_path))


def model_config(models: Models) -> str:
    """Return a ModelServerConfig of the models, in text format."""
    configs = (
        f'  config {{ name: {_quote(name)} base_path: {_quote(_absolute(path))} model_platform: "tensorflow" }}\n'
        for name, path in models.items()
    )
    return f"model_config_list {{\n{''.join(configs)}}}\n"


def flag_arguments(settings: Mapping[str, object]) -> list[str]:
    """Return settings as command-line arguments, without those that are None."""
    return [f"--{name}={_text(value)}" for name, value in settings.items() if value is not None]


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(value: object) -> str:
    """Format `True` as `true`, `(1, 8)` as `1,8`, `{"data": 2}` as `data=2`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_text(one)}" for key, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value)


def reserve_port() -> int:
    """Return a port that the kernel gives for about a minute only to a process that binds it by number.

    A server may take seconds to start listening. Until then the kernel must not give its port to another server, or to
    a client. A client with that port would connect to itself.

    The end of a connection that closes first keeps its port in TIME_WAIT (RFC 9293 section 3.6). Meanwhile only a
    listener that binds the port by number with SO_REUSEADDR gets it, as the server does.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with socket.create_connection(place):
            listener.accept()[0].close()
            return int(place[1])


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
