"""Builders of Flax models, valid and invalid: a user's `models.py`."""

from tests.exporter import flax_builders

scorer = flax_builders.scorer
other_input = flax_builders.other_input
lookup = flax_builders.lookup
positions = flax_builders.positions


def scorer_of(features: int) -> flax_builders.Scorer:
    if features != 3:
        raise ValueError(f"trained for 3 features, not {features}")
    return scorer()


def no_model() -> dict[str, int]:
    return {"units": 8}
