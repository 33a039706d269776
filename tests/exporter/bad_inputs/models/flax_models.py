"""Builders of Flax models, valid and invalid: a user's `models.py`."""

from tests.exporter import flax_builders

scorer = flax_builders.scorer
other_input = flax_builders.other_input
lookup = flax_builders.lookup
positions = flax_builders.positions
kernel = flax_builders.kernel
decoder = flax_builders.Decoder
dropout = flax_builders.AlwaysDropout
noisy = flax_builders.noisy
repeated = flax_builders.repeated


def scorer_of(features: int) -> flax_builders.Scorer:
    if features != 3:
        raise ValueError(f"trained for 3 features, not {features}")
    return scorer()


def no_model() -> dict[str, int]:
    return {"units": 8}
