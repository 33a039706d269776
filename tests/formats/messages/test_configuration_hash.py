"""Tests for the hash of a configuration, which the server and its clients compute separately."""

import pytest
from google.protobuf import text_format

from tpuserve_formats.messages.model_server_config import ModelServerConfig, configuration_sha256

TEXT = """\
# Written by a person.
model_config_list {
  config { name: "b" base_path: "/b" }
  config {
    name: "a" base_path: "/a" model_version_policy { latest { num_versions: 2 } }
    version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: 2 }
    logging_config { sampling_config { sampling_rate: 0.1 } }
    batching_parameters { max_batch_size { value: 8 } }
  }
}
"""


def sha256_of(text: str) -> str:
    return configuration_sha256(text_format.Parse(text, ModelServerConfig()))


def test_the_form_of_the_text_and_the_order_do_not_matter() -> None:
    again = """model_config_list: <config: [
      {version_labels: [{value: 2, key: 'canary'}, {key: "stable", value: 1}] base_path: "/a", name: "a",
       batching_parameters { max_batch_size { value: 8 } }
       logging_config { sampling_config { sampling_rate: 1e-1 } }
       model_version_policy { latest { num_versions: 2 } }},
      {name: "b" base_path: "/b" model_platform: ""}]>"""
    assert sha256_of(again) == sha256_of(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('key: "stable" value: 1', 'key: "stable" value: 2'),
        ('version_labels { key: "canary" value: 2 }', ""),
        ("num_versions: 2", "num_versions: 3"),
        ('base_path: "/b"', 'base_path: "/c"'),
        ("max_batch_size { value: 8 }", "max_batch_size { value: 16 }"),
        ("sampling_rate: 0.1", "sampling_rate: 0.2"),
    ],
)
def test_every_other_change_matters(old: str, new: str) -> None:
    assert old in TEXT
    assert sha256_of(TEXT.replace(old, new)) != sha256_of(TEXT)


def test_the_hash_is_the_same_in_every_release() -> None:
    """A server and its clients may be of different releases."""
    assert sha256_of(TEXT) == "befe782f32c8090bdb56be89163307b7120d056bd2e58e198a8004a5f77d0646"


def test_the_hash_survives_the_wire() -> None:
    message = text_format.Parse(TEXT, ModelServerConfig())
    assert configuration_sha256(ModelServerConfig.FromString(message.SerializeToString())) == sha256_of(TEXT)
