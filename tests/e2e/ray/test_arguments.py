"""Arguments of the application: the server's flags, and those of replicas."""

import pytest

from tpuserve_server.startup.ray_serve import app


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"port": 8500, "drain_timeout_seconds": 5},
            "These flags have no effect in a replica of Ray Serve: drain_timeout_seconds, port. Set http_options",
        ),
        ({"model_base": "/m"}, "Wrong arguments of the application. model_base: Extra inputs are not permitted"),
        ({"model_base_path": "/m", "max_batch_size": "many"}, "max_batch_size: Input should be a valid integer"),
        (
            {"multiplexed_models_root": "/m", "model_base_path": "/m/half"},
            "multiplexed_models_root and model_base_path exclude each other",
        ),
        ({"multiplexed_models_per_replica": "few"}, "multiplexed_models_per_replica must be a whole number above 0"),
        ({"multiplexed_models_per_replica": 0}, "multiplexed_models_per_replica must be a whole number above 0"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        app(args)
