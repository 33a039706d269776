"""Tests that the committed modules match the .proto files, and that the fields match TensorFlow Serving's."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from tpuserve_formats.messages import oip
from tpuserve_formats.messages._proto import generate
from tpuserve_formats.messages._proto.batching_parameters_pb2 import BatchingParameters
from tpuserve_formats.messages._proto.ensemble_scheduling_pb2 import EnsembleScheduling
from tpuserve_formats.messages._proto.monitoring_config_pb2 import MonitoringConfig, PrometheusConfig
from tpuserve_formats.messages._proto.response_cache_pb2 import ResponseCache
from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig


@pytest.mark.parametrize("source", generate.sources(), ids=lambda path: path.name)
def test_committed_module_is_what_its_source_makes(source: Path) -> None:
    for path, text in generate.generated(source).items():
        assert path.read_text() == text


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (MonitoringConfig, {"prometheus_config": (1, FieldDescriptor.TYPE_MESSAGE)}),
        (PrometheusConfig, {"enable": (1, FieldDescriptor.TYPE_BOOL), "path": (2, FieldDescriptor.TYPE_STRING)}),
        (
            BatchingParameters,
            {
                "max_batch_size": (1, FieldDescriptor.TYPE_MESSAGE),
                "batch_timeout_micros": (2, FieldDescriptor.TYPE_MESSAGE),
                "max_enqueued_batches": (3, FieldDescriptor.TYPE_MESSAGE),
                "num_batch_threads": (4, FieldDescriptor.TYPE_MESSAGE),
                "thread_pool_name": (5, FieldDescriptor.TYPE_MESSAGE),
                "allowed_batch_sizes": (6, FieldDescriptor.TYPE_INT64),
                "pad_variable_length_inputs": (7, FieldDescriptor.TYPE_BOOL),
                "enable_large_batch_splitting": (8, FieldDescriptor.TYPE_MESSAGE),
                "max_execution_batch_size": (9, FieldDescriptor.TYPE_MESSAGE),
                # tpuserve's extensions.
                "batching_mode": (1001, FieldDescriptor.TYPE_ENUM),
                "latency_objective_ms": (1002, FieldDescriptor.TYPE_DOUBLE),
                "latency_percentile": (1003, FieldDescriptor.TYPE_DOUBLE),
                "batch_padding_policy": (1004, FieldDescriptor.TYPE_ENUM),
                "sequence_buckets": (1005, FieldDescriptor.TYPE_INT64),
                "low_priority_max_enqueued_batches": (1006, FieldDescriptor.TYPE_INT64),
                "scheduling_weight": (1007, FieldDescriptor.TYPE_DOUBLE),
            },
        ),
        (ResponseCache, {"max_bytes": (1, FieldDescriptor.TYPE_INT64)}),
        (
            SSLConfig,
            {
                "server_key": (1, FieldDescriptor.TYPE_STRING),
                "server_cert": (2, FieldDescriptor.TYPE_STRING),
                "custom_ca": (3, FieldDescriptor.TYPE_STRING),
                "client_verify": (4, FieldDescriptor.TYPE_BOOL),
            },
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fields_are_upstreams(message: type[SSLConfig], fields: dict[str, tuple[int, int]]) -> None:
    descriptor = message.DESCRIPTOR
    assert descriptor.full_name == f"tensorflow.serving.{descriptor.name}"
    assert {field.name: (field.number, field.type) for field in descriptor.fields} == fields


def test_steps_of_ensembles_have_tritons_fields() -> None:
    upstream = oip.ModelConfig.DESCRIPTOR.fields_by_name["ensemble_scheduling"].message_type
    step = EnsembleScheduling.DESCRIPTOR.nested_types_by_name["Step"]
    wanted, found = _kinds(upstream.nested_types_by_name["Step"]), _kinds(step)
    assert wanted.keys() - found.keys() == {"model_namespace"}
    assert found.keys() - wanted.keys() == {"signature_name", "version_label"}
    assert {name: found[name] for name in wanted.keys() & found.keys()}.items() <= wanted.items()
    # A repeated message replaces the map, whose entries look the same.
    entry = upstream.nested_types_by_name["Step"].nested_types_by_name["InputMapEntry"]
    assert _kinds(EnsembleScheduling.DESCRIPTOR.nested_types_by_name["Connection"]) == _kinds(entry)


def _kinds(message: Any) -> dict[str, tuple[int, int, bool]]:  # noqa: ANN401 - the descriptor of any implementation
    return {field.name: (field.number, field.type, field.is_repeated) for field in message.fields}
