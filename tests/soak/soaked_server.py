"""The server of the soak: a real process with TLS, its files, its small disk, and the figures of its processes."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil

from tests.contract.serving_models import save_kinds
from tests.e2e.running_server import EXECUTABLE
from tests.faults.fault_models import save_main, save_slow
from tests.faults.faulted_server import VERTEX_ROUTE
from tests.soak.connections import Address
from tests.soak.graphs import save_counted, save_sequences, save_tripled
from tests.soak.question import COUNTED, CRASHING, ENSEMBLE, LABELLED, SEQUENCES, STUCK
from tests.soak.traffic import LABELLED_VERSIONS, LABELS
from tests.soak.waiting import wait_until
from tests.support.certificates import Authority, Pem
from tests.support.free_ports import free_ports

START_TIMEOUT_S: Final = 300.0
STOP_TIMEOUT_S: Final = 120.0
# Short, but longer than a busy machine stops a good run or client.
RUN_TIMEOUT_S: Final = 15
REPLACE_AFTER_S: Final = 15
HEADER_TIMEOUT_S: Final = 10
_POLL_S: Final = 0.2
# A log of at most 2 files of 64 KiB for each model.
_LOG_BYTES: Final = 64 << 10
DISK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """Resident memory, threads and descriptors of a server's processes together."""

    memory_mb: float
    threads: int
    descriptors: int


class SoakedServer:
    """A server process and the files that it reads. `disk` is a small file system, or "" without the right to mount."""

    def __init__(self, folder: Path, disk: Path | None) -> None:
        """Write the models and the configuration. `start` starts the server."""
        self.folder = folder
        self.disk = disk
        (folder / "certificates").mkdir()
        self.authority = Authority(folder / "certificates")
        grpc_port, rest_port = free_ports(2)
        self.address = Address(f"127.0.0.1:{grpc_port}", f"https://127.0.0.1:{rest_port}", self.authority.ca)
        self.log = folder / "server.log"
        self.labels = dict(zip(LABELS, LABELLED_VERSIONS, strict=True))
        self.extra_models: tuple[str, ...] = ()
        self._written = 0
        self._ports = (grpc_port, rest_port)
        self._write_models()
        self.write_certificate(self.authority.server)
        self.write_config()

    def _write_models(self) -> None:
        save_counted(self.base(COUNTED) / "1", 1)
        for version in LABELLED_VERSIONS:
            save_counted(self.base(LABELLED) / str(version), version)
        save_tripled(self.base("tripled") / "1")
        save_sequences(self.base(SEQUENCES) / "1")
        save_slow(self.base(STUCK) / "1")
        save_slow(self.base(CRASHING) / "1")
        save_main(self.base("m") / "3")
        save_kinds(self.base("kinds") / "1")

    def base(self, model: str) -> Path:
        return self.folder / "models" / model

    def write_certificate(self, pem: Pem, key: Path | None = None) -> None:
        """Replace the certificate in one step. `key` may be the key of another one."""
        key_text, chain = (path.read_text().replace("\n", "\\n") for path in (key or pem.key, pem.cert))
        _replace(self.folder / "ssl.config", f"server_key: '{key_text}' server_cert: '{chain}'")

    def config(self) -> str:
        """Return the ModelServerConfig."""
        names = (COUNTED, LABELLED, "tripled", SEQUENCES, STUCK, CRASHING, "m", "kinds", *self.extra_models)
        return f"model_config_list {{ {' '.join(map(self._model, names))} {_ENSEMBLE} }}"

    def write_config(self) -> None:
        """Replace the configuration file in one step.

        The server ignores a text that it has read before, even if requests have changed its configuration since.
        """
        self._written += 1
        _replace(self.folder / "models.config", f"# {self._written}\n{self.config()}")

    def _model(self, name: str) -> str:
        more = ""
        if name == LABELLED:
            versions = " ".join(f"versions: {version}" for version in LABELLED_VERSIONS)
            labels = " ".join(f'version_labels {{ key: "{key}" value: {value} }}' for key, value in self.labels.items())
            more = f"model_version_policy {{ specific {{ {versions} }} }} {labels}"
        return f'config {{ name: "{name}" base_path: "{self.base(name)}" model_platform: "tensorflow" {more} }}'

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the server, and stop it at exit if it still runs."""
        logs = self.disk or self.folder
        flags = (
            f"--port={self._ports[0]}", f"--rest_api_port={self._ports[1]}", "--bind_address=127.0.0.1",
            f"--file_system_poll_wait_seconds={_POLL_S}",
            f"--model_config_file={self.folder / 'models.config'}", f"--ssl_config_file={self.folder / 'ssl.config'}",
            "--model_name=m", f"--vertex_predict_route={VERTEX_ROUTE}", "--max_num_load_retries=0",
            # The models that hang and that end the process write to pipes.
            "--allowed_ops=WriteFile",
            f"--header_timeout_seconds={HEADER_TIMEOUT_S}", f"--run_timeout_seconds={RUN_TIMEOUT_S}",
            f"--replace_hung_after_seconds={REPLACE_AFTER_S}", f"--request_log_path_prefix={logs / 'requests'}",
            f"--request_log_max_bytes={_LOG_BYTES}", "--request_log_max_files=2",
        )  # fmt: skip
        with self.log.open("wb") as output:
            # In a separate session, so that Ctrl-C reaches the soak alone, which stops the server after the answers.
            self.process = subprocess.Popen(
                [EXECUTABLE, *flags], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, STOP_TIMEOUT_S)

    def worker(self) -> psutil.Process:
        """Return the process that serves: the child of the supervisor."""
        return psutil.Process(self.process.pid).children()[0]

    async def wait_until_ready(self) -> None:
        """Wait until the server reports ready, through connections of this call."""
        async with httpx.AsyncClient(verify=self.address.context(), base_url=self.address.rest) as http:

            async def is_ready() -> bool:
                assert self.process.poll() is None, self.log_after(0)[-3000:]
                return await _status(http, "/readyz") == 200

            await wait_until(is_ready, "/readyz 200", START_TIMEOUT_S)

    async def wait_for_log(self, text: str, start: int) -> None:
        """Wait until the log has `text` after its first `start` bytes."""

        async def has_text() -> bool:
            return text in self.log_after(start)

        await wait_until(has_text, f"{text!r} in the log")

    async def get_status(self, path: str) -> int:
        """Return the status of a GET, or 0 without a response."""
        async with httpx.AsyncClient(verify=self.address.context(), base_url=self.address.rest) as http:
            return await _status(http, path)

    async def get_text(self, path: str) -> str:
        """Return the body of a GET."""
        async with httpx.AsyncClient(verify=self.address.context(), base_url=self.address.rest) as http:
            return (await http.get(path, timeout=60)).text

    def log_after(self, start: int) -> str:
        return self.log.read_bytes()[start:].decode(errors="replace")

    def log_size(self) -> int:
        return self.log.stat().st_size

    def served_serial(self) -> int:
        """Return the serial number of the certificate that a new connection gets. Blocks."""
        host, port = self.address.rest.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            self.address.context().wrap_socket(plain, server_hostname=host) as tls,
        ):
            certificate = tls.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)

    def usage(self) -> Usage:
        """Return the present usage. A process that ends meanwhile counts as 0."""
        memory, threads, descriptors = 0.0, 0, 0
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            for process in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    memory += process.memory_info().rss / 1e6
                    threads += process.num_threads()
                    descriptors += process.num_fds()
        return Usage(memory, threads, descriptors)


_ENSEMBLE: Final = f"""config {{ name: "{ENSEMBLE}" model_platform: "ensemble" ensemble_scheduling {{
  step {{ model_name: "tripled" input_map {{ key: "x" value: "x" }} output_map {{ key: "tripled" value: "tripled" }} }}
  step {{
    model_name: "{COUNTED}"
    input_map {{ key: "x" value: "tripled" }} input_map {{ key: "text" value: "text" }}
    output_map {{ key: "y" value: "y" }} output_map {{ key: "same" value: "same" }}
  }}
}} }}"""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a file system of DISK_BYTES, and yield its path, or None without the right to mount."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


async def _status(http: httpx.AsyncClient, path: str) -> int:
    try:
        return (await http.get(path, timeout=10)).status_code
    except (httpx.HTTPError, ssl.SSLError):
        return 0
