"""Tests of a server with front-end processes: they answer as one server does, and survive the death of a process."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from tests.e2e.running_server import START_TIMEOUT_S, RunningServer, run_configured_server
from tests.e2e.test_reload import publish
from tests.support.access import KeyFile
from tests.support.front_ends import PATIENCE_S, Connections, Processes, connections, segments
from tests.support.saved_models import save_function
from tpuserve_client import Client
from tpuserve_formats.messages.model_server_config import ModelServerConfig

# One process of pytest runs all tests of this module in their order: the last ones kill processes of the server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("front-ends")]

FRONT_ENDS = 2
# 1 MB a row.
WIDE = 1 << 18
# Requests to `logged` that succeed: one over each protocol and front-end.
LOGGED = 2 * FRONT_ENDS
MODELS = ("m", "cached", "logged", "twice")


@dataclass
class Fleet:
    """A server with front-ends, the folder of its models, and the keys of its clients."""

    server: RunningServer
    folder: Path
    keys: KeyFile

    @property
    def processes(self) -> Processes:
        return Processes(self.server)

    @contextlib.contextmanager
    def connected(self, *pids: int) -> Iterator[list[Connections]]:
        """Connect to these front-ends, by default to each one."""
        with contextlib.ExitStack() as stack:
            headers = self.keys.bearer("admin")
            yield [
                stack.enter_context(connections(self.server, pid, headers))
                for pid in pids or sorted(self.processes.front_ends())
            ]

    def samples(self, name: str) -> dict[str, float]:
        """Return the values of a metric by their labels, as the page has them."""
        page = httpx.get(f"{self.server.rest}/metrics", headers=self.keys.bearer("admin"), timeout=PATIENCE_S)
        lines = [line.removeprefix(name) for line in page.raise_for_status().text.splitlines() if line.startswith(name)]
        return {labels: float(value) for labels, _, value in (line.rpartition(" ") for line in lines)}

    def requests(self, model: str) -> float:
        """Return the number of predictions of a model that the metrics page counts."""
        found = self.samples("tpuserve_requests_total").items()
        return sum(
            count for labels, count in found if f'model_name="{model}"' in labels and "predict" in labels.lower()
        )

    def wait_until_ready(self, *models: str) -> None:
        with Client(self.server.grpc, headers=self.keys.bearer("admin")) as client:
            for model in models:
                client.wait_until_ready(START_TIMEOUT_S, model)


def configuration(folder: Path, log: str, labels: str = "") -> str:
    """Return the configuration of all models. `labels` are those of `m`."""
    tensors = (("x", "once"), ("once", "y"))
    maps = [f'input_map {{ key: "x" value: "{x}" }} output_map {{ key: "y" value: "{y}" }}' for x, y in tensors]
    steps = " ".join(f'step {{ model_name: "m" {each} }}' for each in maps)
    of_model = f'model_platform: "tensorflow" base_path: "{folder}'
    sampling = "sampling_config { sampling_rate: 1.0 }"
    return f"""model_config_list {{
        config {{ name: "m" {of_model}/m" {labels} }}
        config {{ name: "wide" {of_model}/wide" }}
        config {{ name: "cached" {of_model}/m" response_cache {{ max_bytes: 1000000 }} }}
        config {{ name: "logged" {of_model}/m" logging_config {{
            log_collector_config {{ type: "tfrecord" filename_prefix: "{folder}/{log}" }} {sampling} }} }}
        config {{ name: "twice" model_platform: "ensemble" ensemble_scheduling {{ {steps} }} }}
    }}"""


@contextlib.contextmanager
def serving(folder: Path, keys: KeyFile, name: str, *flags: str) -> Iterator[Fleet]:
    config = folder / f"{name}.config"
    config.write_text(configuration(folder, name))
    flags = (f"--model_config_file={config}", f"--credentials_file={keys.path}", "--max_num_load_retries=0", *flags)
    log, headers = folder / f"{name}.log", keys.bearer("admin")
    with run_configured_server("envoy", log, *flags, model="wide", headers=headers) as server:
        fleet = Fleet(server, folder, keys)
        fleet.wait_until_ready(*MODELS)
        yield fleet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of `m`, which answers y = x, and `wide`, which answers y = 2 x."""
    folder = tmp_path_factory.mktemp("front-ends")
    publish(folder / "m", 1)
    save_function(folder / "wide" / "1", lambda x: {"y": x + x}, tf.TensorSpec([None, WIDE], tf.float32, "x"))
    return folder


@pytest.fixture(scope="module")
def keys(folder: Path) -> KeyFile:
    keys = KeyFile(folder / "credentials")
    keys.add("admin", "predict,read,control")
    keys.add("caller", "predict")
    return keys


@pytest.fixture(scope="module")
def fleet(folder: Path, keys: KeyFile) -> Iterator[Fleet]:
    with serving(folder, keys, "fleet", f"--frontends={FRONT_ENDS}") as fleet:
        yield fleet
        assert fleet.server.terminate() == 0
        assert len(logged(folder, "fleet")) == LOGGED


def logged(folder: Path, name: str) -> list[bytes]:
    """Return the records of the request log."""
    paths = [str(path) for path in folder.glob(f"{name}*.tfrecord")]
    return list(tf.data.TFRecordDataset(paths).as_numpy_iterator())


def test_special_models_answer_as_with_one_process(fleet: Fleet, folder: Path, keys: KeyFile) -> None:
    with serving(folder, keys, "alone") as alone, alone.connected(alone.processes.engine().pid) as only:
        expected = answers(only * FRONT_ENDS)
    with fleet.connected() as each:
        assert answers(each) == expected
    assert {status for status, *_ in expected} == {200, 400}
    assert {cached for _, cached, *_ in expected} == {None, "miss", "hit"}
    assert len(logged(folder, "alone")) == LOGGED


def answers(each: list[Connections]) -> list[tuple[object, ...]]:
    """Send the same requests through each front-end in turn, and return the responses."""
    found: list[tuple[object, ...]] = []
    for model in MODELS:
        for through in each:
            for rows in ([1.0, 2.0], "text"):
                answer = through.rest(model, rows)
                headers = answer.headers
                found.append(
                    (answer.status_code, headers.get("x-tpuserve-cache"), headers["content-type"], answer.text)
                )
            over_grpc = through.grpc(model, [1.0, 2.0])
            found.append((200, None, over_grpc.SerializeToString(deterministic=True)))
    return found


def test_large_tensors_go_through_segments_and_come_back_equal(fleet: Fleet) -> None:
    rows = np.random.default_rng(0).standard_normal((1, WIDE), np.float32)
    with fleet.connected() as each:
        for through in each:
            over_grpc = tf.make_ndarray(through.grpc("wide", rows).outputs["y"]).tobytes()
            assert over_grpc == (rows + rows).tobytes()
            over_rest = through.rest("wide", rows.tolist()).json()["predictions"]
            assert np.array(over_rest, np.float32).tobytes() == over_grpc
            assert segments(through.pid) & segments(fleet.processes.engine().pid)


def test_both_front_ends_check_keys(fleet: Fleet) -> None:
    with fleet.connected() as each:
        for through in each:
            for name, predicts, reads in (("admin", 200, 200), ("caller", 200, 403), (None, 401, 401)):
                headers = {} if name is None else fleet.keys.bearer(name)
                through.http.headers.pop("authorization", None)
                through.http.headers.update(headers)
                assert through.rest("m", [1.0]).status_code == predicts
                # The engine answers this one.
                assert through.http.get("/v1/models/m").status_code == reads
                through.metadata = tuple(headers.items())
                with contextlib.nullcontext() if predicts == 200 else pytest.raises(grpc.RpcError) as raised:
                    through.grpc("m", [1.0])
                assert raised is None or raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_changes_through_one_front_end_are_in_force_on_the_other(fleet: Fleet) -> None:
    with fleet.connected() as each:
        for number in range(3):
            for through, other in (each, each[::-1]):
                label = f"of-{through.pid}-{number}"
                reload(fleet, through, f'version_labels {{ key: "{label}" value: 1 }}')
                assert other.rest(f"m/labels/{label}", [1.0]).status_code == 200
                through.http.post("/v2/repository/models/cached/unload").raise_for_status()
                assert other.rest("cached", [1.0]).status_code == 404
                through.http.post("/v2/repository/models/cached/load").raise_for_status()
                assert other.rest("cached", [1.0]).status_code == 200
                assert other.grpc("cached", [1.0]).model_spec.name == "cached"
        reload(fleet, each[0])


def reload(fleet: Fleet, through: Connections, labels: str = "") -> None:
    request = model_management_pb2.ReloadConfigRequest()
    config = text_format.Parse(configuration(fleet.folder, "fleet", labels), ModelServerConfig())
    request.config.ParseFromString(config.SerializeToString())
    stub = model_service_pb2_grpc.ModelServiceStub(through.channel)
    response = stub.HandleReloadConfigRequest(request, timeout=PATIENCE_S, metadata=through.metadata)
    assert response.status.error_code == 0, response.status.error_message


def test_the_metrics_page_counts_every_request_of_both_front_ends(fleet: Fleet) -> None:
    before = fleet.requests("m")
    with fleet.connected() as each:
        for number, through in enumerate(each, start=1):
            for _ in range(10 * number):
                through.grpc("m", [1.0])
                through.rest("m", [1.0])
    assert fleet.requests("m") == before + 2 * (10 + 20)


@dataclass
class Load:
    """A client that sends one request after another until an error, or until a stop."""

    send: Callable[[], object]
    stop: threading.Event
    answered: int = 0
    error: Exception | None = None
    begun: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                answer = self.send()
                if isinstance(answer, httpx.Response):
                    answer.raise_for_status()
            except (httpx.HTTPError, grpc.RpcError) as error:
                self.error = error
                return
            self.answered += 1
            self.begun.set()


@contextlib.contextmanager
def loads(*several: Connections) -> Iterator[list[list[Load]]]:
    """Send requests over each connection, until the end of the block. Begin with a response on each."""
    stop = threading.Event()
    made = [
        [Load(partial(each.rest, "m", [1.0]), stop), Load(partial(each.grpc, "m", [1.0]), stop)] for each in several
    ]
    with ThreadPoolExecutor(2 * len(several)) as pool:
        try:
            for load in (load for pair in made for load in pair):
                pool.submit(load.run)
                assert load.begun.wait(PATIENCE_S)
            yield made
        finally:
            stop.set()


def test_front_end_that_is_killed_loses_its_own_requests_alone(fleet: Fleet) -> None:
    engine = fleet.processes.engine()
    with fleet.connected() as [victim, other]:
        wide = np.ones((1, WIDE), np.float32)
        victim.grpc("wide", wide)
        others_segments = segments(other.pid)
        lost_segments = segments(victim.pid) - others_segments
        assert lost_segments & segments(engine.pid)
        before = fleet.requests("m")
        with loads(victim, other) as [killed, kept]:
            os.kill(victim.pid, signal.SIGKILL)
            wait_until(lambda: all(load.error is not None for load in killed))
            [started] = wait_for_front_ends(fleet, other.pid)
            with fleet.connected(started) as [again]:
                assert again.rest("m", [1.0]).status_code == 200
                assert again.grpc("m", [1.0]).model_spec.version.value == 1
        check_only_connections_ended(killed)
        assert [load.error for load in kept] == [None, None]
        assert fleet.requests("m") >= before + sum(load.answered for load in kept) + 2
    assert fleet.processes.engine() == engine
    wait_until(lambda: not lost_segments & segments(engine.pid))
    assert set(fleet.samples("tpuserve_queue_requests").values()) <= {0.0}
    publish(fleet.folder / "m", 2)
    wait_until(lambda: states(fleet) == {2: "AVAILABLE", 1: "END"})
    assert fleet.server.log.read_text().count("ended by itself") == 1


def check_only_connections_ended(several: list[Load]) -> None:
    """Check that REST clients lost their connection, and gRPC clients got the status for that."""
    for load in several:
        if isinstance(load.error, grpc.RpcError):
            assert load.error.code() is grpc.StatusCode.UNAVAILABLE
        else:
            assert isinstance(load.error, httpx.TransportError), load.error


def wait_for_front_ends(fleet: Fleet, *known: int) -> set[int]:
    """Wait until every front-end runs, and return those that are not known."""
    wait_until(lambda: len(fleet.processes.front_ends()) == FRONT_ENDS and fleet.processes.front_ends() > set(known))
    return fleet.processes.front_ends() - set(known)


def states(fleet: Fleet) -> dict[int, str]:
    """Return the state of each version of `m`."""
    answer = httpx.get(f"{fleet.server.rest}/v1/models/m", headers=fleet.keys.bearer("admin"), timeout=PATIENCE_S)
    found = json.loads(answer.text)["model_version_status"]
    return {int(one["version"]): one["state"] for one in found}


def test_engine_that_is_killed_starts_again_with_all_front_ends(fleet: Fleet) -> None:
    engine, before = fleet.processes.engine(), fleet.processes.front_ends()
    with fleet.connected() as each, loads(*each) as made:
        engine.kill()
        several = [load for pair in made for load in pair]
        wait_until(lambda: all(load.error is not None for load in several))
    for load in several:
        if isinstance(load.error, httpx.HTTPStatusError):
            assert load.error.response.status_code == 503
        else:
            check_only_connections_ended([load])
    fleet.wait_until_ready(*MODELS)
    assert fleet.processes.engine() != engine
    assert not wait_for_front_ends(fleet) & before
    with fleet.connected() as each:
        for through in each:
            assert through.rest("m", [1.0]).json() == {"predictions": [2.0]}


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. The test's timeout is the limit."""
    while not condition():
        threading.Event().wait(0.05)
