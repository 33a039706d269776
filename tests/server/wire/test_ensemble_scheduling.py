"""Tests for ensembles in the text of a configuration."""

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig as OfficialModelServerConfig

from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.wire.model_server_config import extended, model_configs

# The steps are as Triton's documentation writes them.
TEXT = """
model_config_list {
  config {
    name: "photos"
    model_platform: "ensemble"
    ensemble_scheduling {
      step [
        {
          model_name: "decode"
          model_version: -1
          input_map { key: "bytes" value: "jpeg" }
          output_map { key: "image" value: "pixels" }
        },
        {
          model_name: "clothing"
          model_version: 3
          signature_name: "classify"
          input_map { key: "image" value: "pixels" }
          input_map { key: "scale" value: "scale" }
          output_map { key: "scores" value: "kinds" }
        }
      ]
      step {
        model_name: "names" version_label: "stable"
        input_map { key: "index" value: "kinds" } output_map { key: "text" value: "name" }
      }
      input: "jpeg" input: "scale"
      output: "name"
    }
  }
}
"""

PHOTOS = ModelConfig(
    "photos",
    "",
    "ensemble",
    ensemble=Ensemble(
        (
            EnsembleStep(1, ModelSpec("decode"), (("bytes", "jpeg"),), (("image", "pixels"),)),
            EnsembleStep(
                2,
                ModelSpec("clothing", 3, signature_name="classify"),
                (("image", "pixels"), ("scale", "scale")),
                (("scores", "kinds"),),
            ),
            EnsembleStep(3, ModelSpec("names", version_label="stable"), (("index", "kinds"),), (("text", "name"),)),
        ),
        ("jpeg", "scale"),
        ("name",),
    ),
)


def test_every_field_arrives() -> None:
    assert model_configs(text_format.Parse(TEXT, ModelServerConfig())) == (PHOTOS,)


def test_upstreams_message_carries_an_ensemble_of_a_reload() -> None:
    sent = text_format.Parse(TEXT, ModelServerConfig()).SerializeToString()
    assert model_configs(extended(OfficialModelServerConfig.FromString(sent))) == (PHOTOS,)


def test_a_key_that_occurs_twice_is_kept_for_the_rules_to_refuse() -> None:
    again = TEXT.replace('input_map { key: "bytes" value: "jpeg" }', 'input_map { key: "bytes" value: "jpeg" }' * 2)
    [config] = model_configs(text_format.Parse(again, ModelServerConfig()))
    assert config.ensemble is not None
    assert config.ensemble.steps[0].inputs == (("bytes", "jpeg"), ("bytes", "jpeg"))


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        model_configs(text_format.Parse(TEXT.replace("model_version: 3", "model_version: -2"), ModelServerConfig()))
    assert caught.value.message == "Ensemble photos: step 2 (clothing) has model_version -2. The latest is -1"
