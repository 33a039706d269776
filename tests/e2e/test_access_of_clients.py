"""Tests of the client library, the commands, load tests and rollouts against servers with keys."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support import forked_command
from tests.support.access import KeyFile as ServerKeys
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client, KeyFile, PermissionDenied, Unauthenticated
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.rollout.model_config_text import ModelConfigText
from tpuserve_loadtests.rollout.model_service import ModelService

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

BIN = Path(sys.executable).parent
ROW = {"x": np.full((1, 64), 0.5, np.float32)}
BRIEF = ["--users", "2", "--duration", "500ms", "--warm-up", "0", "--generator-limit", "note", "--json"]


@dataclass
class Guarded:
    """A server with two versions of model `m`, and files with the keys of its clients."""

    server: RunningServer
    keys: ServerKeys
    folder: Path

    def file(self, name: str) -> Path:
        """Return a file with a client's key."""
        path = self.folder / f"{name}.key"
        path.write_text(f"{self.keys.keys[name]}\n")
        return path

    @property
    def addresses(self) -> list[str]:
        """The addresses of the server for each protocol of the client."""
        grpc, rest = self.server.grpc, self.server.rest
        return [grpc, rest, f"oip+grpc://{grpc}", f"oip+{rest}"]

    def run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        if program in forked_command.ENTRY_POINTS:
            return forked_command.run(program, *arguments, variables=variables)
        environment = {**os.environ, **variables}
        return subprocess.run(
            [BIN / program, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
        )

    def told(self, *texts: str) -> bool:
        """Return whether one of the texts contains a key."""
        return any(key in text for key in self.keys.keys.values() for text in texts)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    for version in ("1", "2"):
        write_manifest(save_mlp(folder / "models/m" / version, seed=1))
    config = folder / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{folder}/models/m" model_platform: "tensorflow" '
        'model_version_policy { all {} } version_labels { key: "stable" value: 1 } } }'
    )
    keys = ServerKeys(folder / "credentials")
    for name, roles in {"user": "predict,read", "caller": "predict", "reader": "read", "operator": "control"}.items():
        keys.add(name, roles)
    flags = (
        f"--model_config_file={config}",
        "--allow_version_labels_for_unavailable_models",
        f"--credentials_file={keys.path}",
        "--credentials_poll_wait_seconds=0.1",
    )
    with run_configured_server(folder / "log", *flags, model="m", headers=keys.bearer("user")) as server:
        with Client(server.grpc, api_key=keys.keys["user"]) as client:
            for number in (1, 2):
                client.wait_until_ready(120, "m", version=number)
        guarded = Guarded(server, keys, folder)
        yield guarded
        assert not guarded.told(server.log.read_text())


def test_clients_send_their_keys_over_every_protocol(guarded: Guarded) -> None:
    for address in guarded.addresses:
        with Client(address, api_key=KeyFile(guarded.file("user"))) as client:
            assert client.predict("m", ROW, version=2)
            assert client.metadata("m").signatures
        # Lists, and all inputs over REST, need the metadata of the model.
        with Client(address, api_key=guarded.keys.keys["caller"]) as caller:
            assert caller.predict("m", {"x": ROW["x"].tolist()}, version=2)
        with Client(address) as anonymous:
            anonymous.wait_until_ready(30)
            with pytest.raises(Unauthenticated, match=r"The client sent no credentials\. Set api_key"):
                anonymous.metadata("m")
        with Client(address, api_key="tpuserve_unknown") as stranger:
            stranger.wait_until_ready(30)
            with pytest.raises(Unauthenticated, match="Check that the credentials are valid") as unknown:
                stranger.metadata("m")
        with (
            Client(address, api_key=guarded.keys.keys["reader"]) as reader,
            pytest.raises(PermissionDenied, match=r"role predict.* Use credentials whose roles") as denied,
        ):
            reader.predict("m", ROW)
        assert (unknown.value.attempts, denied.value.attempts) == (1, 1)
        assert not guarded.told(str(denied.value), repr(denied.value))


def test_expired_token_is_replaced_within_a_call(guarded: Guarded) -> None:
    for address in guarded.addresses:
        tokens = iter(["tpuserve_expired", guarded.keys.keys["reader"]])
        with Client(address, api_key=lambda: next(tokens)) as client:  # noqa: B023  called within the iteration
            assert client.metadata("m").signatures


def test_rotated_key_of_a_file_is_sent_without_a_new_client(guarded: Guarded) -> None:
    file = guarded.file("user")
    with Client(guarded.server.rest, api_key=KeyFile(file)) as client:
        client.status("m")
        file.write_text(guarded.keys.add("rotated", "read"))
        while True:  # the server reads its file again within a moment
            try:
                client.status("m")
                break
            except Unauthenticated:
                continue
        file.write_text("tpuserve_unknown")
        with pytest.raises(Unauthenticated):
            client.status("m")


def test_commands_send_the_key(guarded: Guarded) -> None:
    rows = guarded.folder / "rows.npz"
    np.savez(rows, **ROW)  # type: ignore[arg-type]  # arrays by name
    for address in guarded.addresses[:2]:
        place = ["--address", address]
        key = ["--api-key-file", str(guarded.file("user"))]
        predicted = guarded.run("tpuserve", "predict", "m", "--input", str(rows), *place, *key)
        assert (predicted.returncode, predicted.stderr) == (0, "")
        status = guarded.run("tpuserve", "status", "m", *place, TPUSERVE_API_KEY=guarded.keys.keys["reader"])
        assert status.returncode == 0, status.stderr
        anonymous = guarded.run("tpuserve", "status", "m", *place)
        assert anonymous.returncode == 1
        assert "Set --api-key-file, TPUSERVE_API_KEY or --cert" in anonymous.stderr
        assert not guarded.told(predicted.stdout, status.stdout, anonymous.stderr)


def test_load_test_sends_the_key_and_reads_the_metrics(guarded: Guarded) -> None:
    page = guarded.folder / "page.html"
    places = ["--grpc", guarded.server.grpc, "--rest", guarded.server.rest]
    key = ["--api-key-file", str(guarded.file("user"))]
    found = guarded.run("tpuserve-loadtest", "m", *places, *key, *BRIEF, "--processes", "2", "--html", str(page))
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["total"]["failures"] == 0
    assert document["server"], "the report has the server's own figures"
    assert not guarded.told(found.stdout, found.stderr, page.read_text())


@pytest.mark.parametrize(("name", "role"), [("reader", "predict"), ("operator", "read"), (None, "read")])
def test_load_test_names_the_missing_role(guarded: Guarded, name: str | None, role: str) -> None:
    secret = {} if name is None else {"TPUSERVE_API_KEY": guarded.keys.keys[name]}
    for place in (["--grpc", guarded.server.grpc], ["--rest", guarded.server.rest]):
        found = guarded.run("tpuserve-loadtest", "m", *place, *BRIEF, **secret)
        assert (found.returncode, found.stdout) == (2, "")
        assert f"need credentials with the role {role}. Set --api-key-file or" in " ".join(found.stderr.split())
        assert not guarded.told(found.stderr)


def test_rollout_reloads_with_a_key_of_its_own(guarded: Guarded) -> None:
    config = guarded.folder / "models.config"
    command = ["m", "--to", "2", "--model_config_file", str(config), "--grpc", guarded.server.grpc, "--no-parity"]
    user = {"TPUSERVE_API_KEY": guarded.keys.keys["user"]}
    operator = ["--control-api-key-file", str(guarded.file("operator"))]
    planned = guarded.run("tpuserve-rollout", *command, *operator, **user)
    assert planned.returncode == 0, planned.stderr
    assert not guarded.told(planned.stdout, planned.stderr)
    alone = guarded.run("tpuserve-rollout", *command, **user)
    assert alone.returncode == 2
    told = " ".join(alone.stderr.split())
    assert "The reloads of the configuration need credentials with the role control." in told
    assert "Set --control-api-key-file or TPUSERVE_CONTROL_API_KEY" in told
    reader = guarded.run("tpuserve-rollout", *command, *operator, TPUSERVE_API_KEY=guarded.keys.keys["reader"])
    assert reader.returncode == 2
    assert "The predictions need credentials with the role predict" in " ".join(reader.stderr.split())


def test_reload_needs_the_role_control_and_reads_its_file_again(guarded: Guarded) -> None:
    text = (guarded.folder / "models.config").read_text()
    moved = text.replace("value: 1", "value: 2")
    user, file = Access(api_key=guarded.keys.keys["user"]), guarded.file("user")
    control = Access(api_key=KeyFile(file))
    with ModelService(guarded.server.grpc, user, 30, 60, control) as service:
        for attempt in (service.check_control, lambda: service.reload(ModelConfigText(moved).message)):
            with pytest.raises(PermissionDenied, match="role control"):
                attempt()
        assert service.labelled("m", "stable") == 1
        file.write_text(guarded.keys.keys["operator"])
        service.check_control()
        assert service.labelled("m", "stable") == 1
        service.reload(ModelConfigText(moved).message)
        assert service.labelled("m", "stable") == 2
        service.reload(ModelConfigText(text).message)
