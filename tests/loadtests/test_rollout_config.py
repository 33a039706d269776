"""Tests that a label change edits only the labels of a user-written configuration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_loadtests.rollout.model_config_text import BadConfig, ModelConfigText

TEXT = """\
# The models of this cluster: "digits" { belongs } to vision.
model_config_list {
  config {
    name: "digits"
    base_path: '/models/digits'   # {not a message}
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 3 versions: 4 } }
    version_labels { key: "stable" value: 3 }
    batching_parameters { max_batch_size { value: 8 } latency_objective_ms: 20 }
  }
  config { name: "other" base_path: "gs://bucket/other" model_platform: "tensorflow"
           version_labels { key: "stable" value: 3 } }
}
"""


def test_a_label_is_given_to_another_version_and_nothing_else_changes() -> None:
    changed = ModelConfigText(TEXT).with_labels("digits", {"stable": 4})
    assert changed.text == TEXT.replace('"stable" value: 3 }\n    batching', '"stable" value: 4 }\n    batching')
    assert changed.labels("digits") == {"stable": 4}
    assert changed.labels("other") == {"stable": 3}


def test_a_new_label_is_added_beside_the_others_and_taken_away_again() -> None:
    added = ModelConfigText(TEXT).with_labels("digits", {"canary": 4})
    assert added.labels("digits") == {"stable": 3, "canary": 4}
    new = set(added.text.splitlines()) - set(TEXT.splitlines())
    assert new == {'    version_labels { key: "canary" value: 4 }'}
    gone = added.with_labels("digits", {"canary": None})
    assert gone.text == TEXT


def test_a_label_that_shares_its_line_is_taken_away_alone() -> None:
    gone = ModelConfigText(TEXT).with_labels("other", {"stable": None})
    assert gone.labels("other") == {}
    assert gone.text.endswith('"tensorflow"\n }\n}\n')


@pytest.mark.parametrize(
    "written",
    [
        'version_labels { value: 3 key: "stable" }',
        "version_labels < key: 'sta' 'ble', value: 3; >",
        'version_labels: [ { key: "a" value: 1 }, { key: "stable" value: 3 } ]',
        'version_labels { key: "stable" }',
        'version_labels { key: "stable" value: 1 } version_labels { key: "stable" value: 3 }',
        'version_labels { key: "st\\141ble" value: 0x3 }',
    ],
)
def test_labels_are_changed_however_they_are_written(written: str) -> None:
    text = f'model_config_list: <config: [{{ base_path: "/m" name: "m" {written} }}]>'
    changed = ModelConfigText(text).with_labels("m", {"stable": 9, "canary": 9})
    before = ModelConfigText(text).labels("m")
    assert changed.labels("m") == {**before, "stable": 9, "canary": 9}


def test_a_label_in_a_list_cannot_be_taken_away_and_that_is_said() -> None:
    text = 'model_config_list { config { name: "m" version_labels: [{ key: "stable" value: 3 }] } }'
    with pytest.raises(BadConfig, match="cannot remove label stable"):
        ModelConfigText(text).with_labels("m", {"stable": None})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model_config_list {", "not a ModelServerConfig: 1:"),
        ("model_config_list { config { name: 'm' colour: 'red' } }", '"colour"'),
        ("custom_model_config {}", "custom_model_config"),
        ("", "contains no model"),
        ("model_config_list { config { name: 'm' } config { name: 'm' } }", "twice"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(BadConfig, match=complaint):
        ModelConfigText(text)


def test_a_model_that_is_not_in_it_is_told_with_those_that_are() -> None:
    with pytest.raises(BadConfig, match="does not contain model no; its models are digits, other"):
        ModelConfigText(TEXT).with_labels("no", {"stable": 1})


@settings(max_examples=60)
@given(st.text(min_size=1, max_size=8).filter(str.isprintable), st.integers(-(2**63), 2**63 - 1))
def test_any_label_and_version_stand_in_the_text_as_they_are(label: str, version: int) -> None:
    changed = ModelConfigText(TEXT).with_labels("other", {label: version})
    assert changed.labels("other")[label] == version
    assert changed.labels("digits") == {"stable": 3}
