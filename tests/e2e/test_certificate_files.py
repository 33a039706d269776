"""Tests of PEM files against a real server, over gRPC and REST, with swaps as the kubelet makes them."""

import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest

from tests.e2e.running_server import EXECUTABLE, START_TIMEOUT_S, RunningServer, run_configured_server
from tests.support.certificates import Authority, Pem
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_formats.messages.oip import ServerMetadataResponse

pytestmark = pytest.mark.slow


@dataclass
class Mount:
    """A Secret of the type kubernetes.io/tls as the kubelet mounts it: links through `..data`, replaced by a rename."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (self.folder / name).symlink_to(f"..data/{name}")

    def swap(self, own: Pem, ca: Path, key: Path | None = None) -> None:
        content = self.folder / f"..{len(list(self.folder.iterdir()))}"
        content.mkdir()
        for name, source in (("tls.crt", own.cert), ("tls.key", key or own.key), ("ca.crt", ca)):
            shutil.copy(source, content / name)
            (content / name).chmod(0o440)
        (self.folder / "..data_tmp").symlink_to(content.name)
        (self.folder / "..data_tmp").replace(self.folder / "..data")

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(
            f"--tls_{name}_file={self.folder / file}"
            for name, file in (("cert", "tls.crt"), ("key", "tls.key"), ("client_ca", "ca.crt"))
        )


class Client:
    """A client with a certificate of an authority, which trusts only servers of this authority."""

    def __init__(self, authority: Authority, address: RunningServer) -> None:
        self._ca, self._pair, self._server = authority.ca, authority.issue("client@example.org"), address

    def grpc(self) -> str:
        """Return the server's name, or the code of the error."""
        key, chain = self._pair.key.read_bytes(), self._pair.cert.read_bytes()
        with grpc.secure_channel(
            self._server.grpc, grpc.ssl_channel_credentials(self._ca.read_bytes(), key, chain)
        ) as channel:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerMetadata"
            )
            try:
                return ServerMetadataResponse.FromString(ask(b"", timeout=30)).name
            except grpc.RpcError as error:
                return error.code().name

    def rest(self, *, with_certificate: bool = True) -> int:
        """Return the status of the readiness. Raises httpx.TransportError if the client or the server refuses."""
        context = ssl.create_default_context(cafile=str(self._ca))
        if with_certificate:
            context.load_cert_chain(self._pair.cert, self._pair.key)
        with httpx.Client(verify=context) as http:
            return http.get(self._server.rest.replace("http:", "https:") + "/readyz", timeout=30).status_code

    def is_served(self) -> bool:
        try:
            return self.rest() == 200
        except httpx.TransportError:
            return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    (tmp_path / "secret").mkdir()
    return Mount(tmp_path / "secret")


@pytest.fixture
def old(tmp_path: Path) -> Authority:
    (tmp_path / "old").mkdir()
    return Authority(tmp_path / "old")


@pytest.fixture
def server(tmp_path: Path, mount: Mount, old: Authority) -> Iterator[RunningServer]:
    mount.swap(old.server, old.ca)
    write_manifest(save_mlp(tmp_path / "m" / "1", seed=1))
    pair = old.issue("client@example.org")
    credentials = grpc.ssl_channel_credentials(old.ca.read_bytes(), pair.key.read_bytes(), pair.cert.read_bytes())
    flags = (f"--model_base_path={tmp_path / 'm'}", "--model_name=m", "--ssl_config_file_poll_wait_seconds=0.2")
    with run_configured_server(tmp_path / "log", *flags, *mount.flags, model="m", credentials=credentials) as server:
        yield server


def test_a_swap_of_the_mount_replaces_the_certificates(
    server: RunningServer, mount: Mount, old: Authority, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    new = Authority(tmp_path / "new")
    before, after = Client(old, server), Client(new, server)
    assert (before.grpc(), before.rest()) == ("tpuserve", 200)
    # The health check of the image has no certificate.
    check = [str(EXECUTABLE.with_name("tpuserve-health")), f"--pid={server.process.pid}"]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stdout.startswith("unix:")) == (0, True)
    with pytest.raises(httpx.TransportError):
        before.rest(with_certificate=False)
    assert not after.is_served()

    # A key that does not belong to the certificate changes nothing.
    mount.swap(new.server, new.ca, key=old.server.key)
    log = tmp_path / "log"
    why = f"Key '{mount.folder}/tls.key' does not belong to certificate '{mount.folder}/tls.crt'."
    wait_until(lambda: why in log.read_text())
    assert "WARNING" in next(line for line in log.read_text().splitlines() if why in line)
    assert (before.grpc(), before.is_served(), after.is_served()) == ("tpuserve", True, False)

    mount.swap(new.server, new.ca)
    wait_until(after.is_served)
    wait_until(lambda: not before.is_served())
    assert (after.grpc(), before.grpc()) == ("tpuserve", "UNAVAILABLE")


@pytest.mark.parametrize(
    ("break_files", "message"),
    [
        (lambda crt, _: crt.write_bytes(b"\x30\x82\x01\xff"), "tls.crt': not UTF-8 text"),
        (lambda crt, _: crt.write_text("/tls/tls.crt"), "tls.crt' is not a PEM certificate (expected text with a line"),
        (lambda _, key: key.write_text(""), "tls.key' is not a PEM private key (expected text with a line"),
        (lambda _, key: key.unlink(), "tls.key': No such file or directory"),
    ],
    ids=["der", "path", "empty key", "no key"],
)
def test_files_that_are_no_certificate_end_the_start_with_one_line(
    tmp_path: Path, break_files: Callable[[Path, Path], object], message: str
) -> None:
    own = Authority(tmp_path).server
    crt, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    own.cert.rename(crt)
    own.key.rename(key)
    key.chmod(0o600)
    break_files(crt, key)
    ended = subprocess.run(
        [EXECUTABLE, "--model_base_path=/nowhere", "--port=0", "--rest_api_port=1", f"--tls_cert_file={crt}",
         f"--tls_key_file={key}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
