"""Builders of torch modules, valid and invalid: a user's `models.py`."""

from tests.exporter.pytorch import modules

tiny = modules.tiny
noisy = modules.noisy
branching = modules.branching
unsupported = modules.unsupported


def tiny_of(features: int) -> modules.Tiny:
    if features != 3:
        raise ValueError(f"trained for 3 features, not {features}")
    return tiny()


def no_model() -> dict[str, int]:
    return {"units": 4}
