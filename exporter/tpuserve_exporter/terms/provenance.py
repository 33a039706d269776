"""Provenance: the origin of each value in a version, of variables and of tables alike.

Every source names the origin of its values. The report lists all of them; the manifest counts them by origin.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias


class OriginKind(StrEnum):
    """Kind of the thing that a value comes from."""

    PARAMETERS = "parameters"  # as trained, with the state of layers such as batch statistics
    AVERAGE = "average"  # an average of parameters
    VOCABULARY = "vocabulary"  # the terms of a lookup, or another table
    STATISTICS = "statistics"  # adapted to data before the training, as Keras' Normalization does
    INITIALIZER = "initializer"  # the builder's value, because the checkpoint has none (--allow-missing)
    COPIED = "copied"  # copied with a SavedModel
    LIVE = "live"  # of a model in the user's process


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of one value.

    `part` is the source's name for the part that holds the value, such as `ema_params`, or empty for the whole source.
    `detail` describes a computation of the values, or what is unknown about them. All values of a part share it,
    because the manifest counts values by kind, part and detail. `stored` is the value's name in the source, if it
    differs from the name in the model.
    """

    kind: OriginKind = OriginKind.PARAMETERS
    part: str = ""
    detail: str = ""
    stored: str | None = None


TRAINED = Origin()
LIVE = Origin(OriginKind.LIVE)
INITIAL = Origin(OriginKind.INITIALIZER)
# The origin of each value, by the value's name in the model.
Origins: TypeAlias = Mapping[str, Origin]


def origins_to_json(origins: Origins) -> list[dict[str, Any]]:
    """Return the origin of every value, with its name."""
    return [{"name": name, **asdict(one)} for name, one in origins.items()]
