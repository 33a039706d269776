import os
from pathlib import Path

import pytest

from tpuserve_server.core.batching.parameters import BatchingMode, BatchingParameters, PaddingPolicy
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.startup.config_files import (
    ConfigError,
    read_batching_parameters,
    read_metrics_path,
    read_model_batching_parameters,
    read_text,
)

EVERYTHING = """
max_batch_size { value: 128 }
batch_timeout_micros { value: 0 }
max_enqueued_batches { value: 1000000 }
num_batch_threads { value: 8 }
thread_pool_name { value: "batchers" }
allowed_batch_sizes: [ 32, 64 ]
allowed_batch_sizes: 128
pad_variable_length_inputs: true
enable_large_batch_splitting { value: true }
max_execution_batch_size { value: 64 }
batching_mode: GREEDY
latency_percentile: 95
batch_padding_policy: BATCH_DOWN
low_priority_max_enqueued_batches: 10
scheduling_weight: 2.5
"""


def test_every_field_is_read(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text(EVERYTHING)
    assert read_batching_parameters(file) == BatchingParameters(
        max_batch_size=128,
        allowed_batch_sizes=(32, 64, 128),
        batch_timeout_micros=0,
        max_enqueued_batches=1000000,
        num_batch_threads=8,
        enable_large_batch_splitting=True,
        max_execution_batch_size=64,
        pad_variable_length_inputs=True,
        batching_mode=BatchingMode.GREEDY,
        latency_percentile=95,
        batch_padding_policy=PaddingPolicy.BATCH_DOWN,
        low_priority_max_enqueued_batches=10,
        scheduling_weight=2.5,
    )


def test_an_objective_is_read(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text("batching_mode: OBJECTIVE latency_objective_ms: 12.5 sequence_buckets: [ 16, 64 ]")
    assert read_batching_parameters(file) == BatchingParameters(
        batching_mode=BatchingMode.OBJECTIVE, latency_objective_ms=12.5, sequence_buckets=(16, 64)
    )


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.touch()
    assert read_batching_parameters(file) == BatchingParameters()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_batch_size: 128",
            'Error parsing text-format tensorflow.serving.BatchingParameters: 1:17: Expected "{"',
        ),
        ("\nmax_size { value: 1 }", '2:1: Message type "tensorflow.serving.BatchingParameters" has no field named'),
        ("max_batch_size { value: 'x' }", "1:25: Couldn't parse integer"),
        ("num_batch_threads { value: 0 }", "num_batch_threads must be positive; was 0"),
        ("batching_mode: FAST", "has no value named FAST"),
        ("batching_mode: OBJECTIVE", "batching_mode objective requires latency_objective_ms"),
        ("latency_objective_ms: 0", "latency_objective_ms must be positive; was 0"),
        ("low_priority_max_enqueued_batches: 0", "low_priority_max_enqueued_batches must be positive; was 0"),
        # Upstream requires the default as last entry here.
        ("allowed_batch_sizes: 8", "last entry was 8; expected 1000"),
    ],
)
def test_a_wrong_file_is_explained_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "batching.config"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_batching_parameters(file)
    assert message in str(raised.value)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text("max_batch_size { value: 128 } num_batch_threads { value: 8 }")
    flags = BatchingParameters(max_batch_size=4)
    assert read_batching_parameters(file, flags) == BatchingParameters(max_batch_size=4, num_batch_threads=8)


def test_a_version_may_say_nothing_of_itself(tmp_path: Path) -> None:
    assert read_model_batching_parameters(tmp_path) is None


def test_a_version_speaks_for_itself(tmp_path: Path) -> None:
    (tmp_path / "batching_params.pbtxt").write_text("max_batch_size { value: 4 }")
    assert read_model_batching_parameters(tmp_path) == BatchingParameters(max_batch_size=4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"max_batch_size { value: -1 }", "max_batch_size must be positive; was -1"),
        (b"max", "Error parsing text-format tensorflow.serving.BatchingParameters: 1:1"),
        (b"# caf\xe9", "not UTF-8 text"),
    ],
)
def test_what_a_version_says_wrongly_is_told_without_its_folder(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "batching_params.pbtxt").write_bytes(content)
    with pytest.raises(InvalidArgument) as raised:
        read_model_batching_parameters(tmp_path)
    assert message in raised.value.message
    assert "batching_params.pbtxt" in raised.value.message
    assert str(tmp_path) not in raised.value.message


def test_a_version_whose_file_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "batching_params.pbtxt").mkdir()
    with pytest.raises(InvalidArgument, match=r"Cannot read 'batching_params.pbtxt': Is a directory"):
        read_model_batching_parameters(tmp_path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", None),
        ("prometheus_config { path: '/m' }", None),
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ("prometheus_config { enable: true path: '/m' }", "/m"),
    ],
)
def test_where_metrics_are(tmp_path: Path, text: str, path: str | None) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text(text)
    assert read_metrics_path(file) == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prometheus_config { enable: true path: 'm' }",
            "expected a path such as /monitoring/prometheus/metrics, got 'm'",
        ),
        ("prometheus_config { enable: true path: '/a b' }", "expected a path such as"),
        ("prometheus_config { enable: true path: '/{a}' }", "expected a path such as"),
        ("prometheus_config { enable: true path: '/healthz' }", "the path '/healthz' is reserved for another page"),
        (
            "prometheus_config { enable: true path: '/v1/metrics' }",
            "expected a path outside /v1/ and /v2, got '/v1/metrics'",
        ),
        ("prometheus_config { enable: true path: '/V2' }", "expected a path outside /v1/ and /v2, got '/V2'"),
        ("prometheus_config { enable: 2 }", "Error parsing text-format tensorflow.serving.MonitoringConfig: 1:29: "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_metrics_path(file)


def test_line_ends_of_other_systems_are_line_ends(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "config") == "a\nb\nc\n"


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"^Cannot read '.*pipe': it is a named pipe\. Use a regular file$"):
        read_text(tmp_path / "pipe")


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    with pytest.raises(ConfigError, match=r"large': it has more than 64 MiB$"):
        read_text(tmp_path / "large")


def test_an_error_names_the_file_as_the_caller_shows_it(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match=r"^Cannot read 'shown': not UTF-8 text \(byte 2\)$"):
        read_text(tmp_path / "config", Path("shown"))
