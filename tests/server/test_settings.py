from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tpuserve_server.settings import Settings


def test_defaults_are_tensorflow_servings_where_it_has_them() -> None:
    settings = Settings(model_base_path=Path("/models/m"))
    assert (settings.port, settings.rest_api_port, settings.model_name) == (8500, 8501, "default")
    assert settings.file_system_poll_wait_seconds == 1
    assert settings.rest_api_timeout_in_ms == 30000
    assert settings.enable_batching is None


def test_settings_survive_the_way_to_the_embedded_interpreter() -> None:
    settings = Settings(model_base_path=Path("/m"), allowed_batch_sizes=(1, 8), grpc_socket_path=Path("/run/s"))
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"port": 0, "rest_api_port": 0}, "nothing to listen on"),
        ({"port": 9000, "rest_api_port": 9000}, "both 9000"),
        ({"port": 70000}, "less than or equal to 65535"),
        ({"allowed_batch_sizes": (4, 2)}, "ascending"),
        ({"allowed_batch_sizes": (0, 2)}, "positive"),
        ({"allowed_batch_sizes": (1, 2), "max_batch_size": 4}, "last entry was 2; expected 4"),
        ({"no_such_setting": 1}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(model_base_path=Path("/m"), **fields)
