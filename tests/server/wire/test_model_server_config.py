import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig as OfficialModelServerConfig

from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_server.core.batching.parameters import BatchingMode, BatchingParameters
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig, VersionPolicy
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.model_server_config import extended, model_configs


def parse(text: str) -> tuple[ModelConfig, ...]:
    return model_configs(text_format.Parse(text, ModelServerConfig()))


def test_every_field_arrives() -> None:
    text = """
    model_config_list {
      config {
        name: "a" base_path: "/models/a" model_platform: "tensorflow"
        model_version_policy { specific { versions: 3 versions: 5 } }
        version_labels { key: "stable" value: 3 } version_labels { key: "canary" value: 5 }
        logging_config {
          log_collector_config { type: "jsonl" filename_prefix: "/logs/a" } sampling_config { sampling_rate: 0.25 }
        }
      }
      config { name: "b" base_path: "gs://bucket/b" model_type: TENSORFLOW }
    }
    """
    assert parse(text) == (
        ModelConfig(
            "a",
            "/models/a",
            "tensorflow",
            VersionPolicy.specific([3, 5]),
            {"stable": 3, "canary": 5},
            LoggingConfig("jsonl", "/logs/a", 0.25),
        ),
        ModelConfig("b", "gs://bucket/b"),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", VersionPolicy.latest(1)),
        ("model_version_policy { latest {} }", VersionPolicy.latest(1)),
        ("model_version_policy { latest { num_versions: 3 } }", VersionPolicy.latest(3)),
        ("model_version_policy { all {} }", VersionPolicy.all()),
        ("model_version_policy { specific { versions: -1 } }", VersionPolicy.specific([-1])),
    ],
)
def test_version_policies(text: str, policy: VersionPolicy) -> None:
    [config] = parse(f'model_config_list {{ config {{ name: "m" model_platform: "tensorflow" {text} }} }}')
    assert config.version_policy == policy


def test_a_list_without_models_is_a_list() -> None:
    assert parse("model_config_list {}") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Only ModelConfigList is currently supported"),
        ("custom_model_config {}", "Only ModelConfigList is currently supported"),
        ('model_config_list { config { name: "m" } }', "Illegal setting neither .* model name is m"),
        (
            'model_config_list { config { name: "m" model_type: TENSORFLOW model_platform: "tensorflow" } }',
            "Illegal setting both .* model name is m",
        ),
        ("model_config_list { config { model_type: OTHER } }", "model_type choice 2 not supported"),
    ],
)
def test_what_is_no_list_of_models_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse(text)


def with_batching(text: str) -> str:
    return (
        f'model_config_list {{ config {{ name: "m" model_platform: "tensorflow" batching_parameters {{ {text} }} }} }}'
    )


def test_a_model_may_have_a_batching_of_its_own() -> None:
    [config] = parse(with_batching("batching_mode: OBJECTIVE latency_objective_ms: 20 max_batch_size { value: 64 }"))
    assert config.batching == BatchingParameters(
        max_batch_size=64, batching_mode=BatchingMode.OBJECTIVE, latency_objective_ms=20
    )


def test_a_batching_that_says_nothing_is_one() -> None:
    [config] = parse(with_batching(""))
    assert config.batching == BatchingParameters()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency_objective_ms: -1", "Model m: latency_objective_ms must be positive; was -1"),
        ("batching_mode: 9", "Model m: batching_mode must be one of GREEDY, TIMEOUT, OBJECTIVE; was 9."),
        (
            "batch_padding_policy: 9",
            "Model m: batch_padding_policy must be one of PAD_UP, BATCH_DOWN, MIN_COST; was 9.",
        ),
    ],
)
def test_a_batching_that_does_not_fit_together_is_refused_with_the_models_name(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse(with_batching(text))
    assert raised.value.message.startswith(message)


def test_upstreams_message_carries_our_field_along() -> None:
    ours = text_format.Parse(with_batching("latency_objective_ms: 20"), ModelServerConfig())
    official = OfficialModelServerConfig.FromString(ours.SerializeToString())
    assert model_configs(extended(official))[0].batching == BatchingParameters(latency_objective_ms=20)


def test_our_message_is_upstreams_and_our_fields() -> None:
    ours, upstreams = (
        set(kind.DESCRIPTOR.file.message_types_by_name["ModelConfig"].fields_by_number)
        for kind in (ModelServerConfig, OfficialModelServerConfig)
    )
    assert ours - upstreams == {1001, 1002, 1003, 1004}
    assert upstreams < ours


@pytest.mark.parametrize(
    ("text", "max_bytes"),
    [
        ("", None),
        ("response_cache { max_bytes: 0 }", 0),
        ("response_cache { max_bytes: 1048576 }", 1 << 20),
    ],
)
def test_response_caches(text: str, max_bytes: int | None) -> None:
    [config] = parse(f'model_config_list {{ config {{ name: "m" model_platform: "tensorflow" {text} }} }}')
    assert config.response_cache_max_bytes == max_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("response_cache {}", "Model m: response_cache needs max_bytes; 0 turns the cache off."),
        ("response_cache { max_bytes: -1 }", "Model m: response_cache.max_bytes must be at least 0; was -1."),
    ],
)
def test_unusable_response_caches_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(f'model_config_list {{ config {{ name: "m" model_platform: "tensorflow" {text} }} }}')
    assert caught.value.message == message
