"""Tests for the model and version that a request names."""

import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.wire.oip.model_spec import parse_model_spec


@pytest.mark.parametrize(("text", "version"), [("", None), ("7", 7), ("007", 7), (str(2**63 - 1), 2**63 - 1)])
def test_a_version_is_a_number_and_empty_is_the_latest(text: str, version: int | None) -> None:
    assert parse_model_spec("m", text, "s") == ModelSpec("m", version, None, "s")


@pytest.mark.parametrize("text", ["x", "-1", "1.0", " 1", "٣", str(2**63), "9" * 5000])
def test_other_versions_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_model_spec("m", text)
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text[:32]}', version should be an integral "
        "value > 0"
    )
