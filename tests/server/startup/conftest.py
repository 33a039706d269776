"""A model that loads quickly, without TensorFlow."""

from pathlib import Path

import pytest

from tests.support.tflite_models import half_plus_two, save


@pytest.fixture(scope="session")
def light_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a base path with version 1 of half_plus_two for `prefer_tflite_model`.

    The signature is serving_default_x [?, 1] → x / 2 + 2.
    """
    base_path = tmp_path_factory.mktemp("light")
    save(base_path / "1", half_plus_two())
    return base_path
