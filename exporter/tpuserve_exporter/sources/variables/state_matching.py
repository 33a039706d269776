"""Restores or compares the values of a model that are no variables: the states of Keras layers, and lookup tables."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed, CheckpointMismatch, reason_of
from tpuserve_exporter.models.layer_settings import find_other_settings
from tpuserve_exporter.models.layer_states import LayerState, SavedLayers, list_states
from tpuserve_exporter.models.tables import Table, list_tables
from tpuserve_exporter.terms.provenance import Origin, OriginKind, Origins
from tpuserve_exporter.terms.restore_report import Entry, Fate
from tpuserve_exporter.terms.texts import first

if TYPE_CHECKING:
    import keras

_MOST_NAMED = 5


def fill_states(model: Any, saved: SavedLayers, *, built: bool = False) -> None:  # noqa: ANN401 - Keras or tf.Module
    """Set the saved value of every layer that has none, or that reads its value itself.

    Layers need theirs before the first call; those that need variables get it in a second run, with `built`. Raises
    SourceUnreadable, and BuilderFailed if a layer does not take its saved value.
    """
    states = [state for state in list_states(model) if state.needs_variables == built]
    # A vocabulary comes with weights of ones, so that the list has to be complete before the first load.
    for state in [one for one in states if one.reads_itself or one.read() is None]:
        if state.find(saved) is not None:
            _load(state, saved)


def _load(state: LayerState, saved: SavedLayers) -> None:
    try:
        state.load(saved)
    except Exception as error:  # the code of Keras or of the user
        raise BuilderFailed(f"{state.name} does not take its saved value: {reason_of(error)}") from error


def compare_states(model: Any, saved: SavedLayers) -> list[Entry]:  # noqa: ANN401 - a Keras model or any tf.Module
    """Compare the value of every layer with the saved one, after `fill_states`."""
    return [_compare(state, saved) for state in list_states(model) if state.read() != {}]


def compare_settings(model: "keras.Model", saved: SavedLayers) -> list[Entry]:
    """Return the settings in which the model's layers differ from the saved ones.

    Those of layers that prepare inputs make the checkpoint unfit. Others may be deliberate, such as another activation.
    """
    return [
        Entry(one.name, Fate.SETTING, one.own, one.stored, allowed=not one.prepares)
        for one in find_other_settings(model, saved)
    ]


def describe_settings(entries: Sequence[Entry], name: str) -> Iterator[str]:
    """Yield a note on settings that differ from those in the file `name`."""
    if entries:
        differ = [f"{one.name} is {one.checkpoint}, but the builder has {one.model}" for one in entries]
        yield f"the settings of layers differ from those in {name}: {first(differ, _MOST_NAMED)}"


def _compare(state: LayerState, saved: SavedLayers) -> Entry:
    own, stored = state.read(), state.find(saved)
    if stored is None:
        fate = Fate.EMPTY if own is None else Fate.UNHELD
        return Entry(state.name, fate, None if own is None else state.describe(own), allowed=state.is_setting)
    if own == stored or state.reads_itself:
        return Entry(state.name, Fate.MATCHED, state.describe(own), state.describe(stored), origin=Origin(state.kind))
    place = next((index for index, (a, b) in enumerate(zip(own or (), stored, strict=False)) if a != b), None)
    return Entry(state.name, Fate.VALUE, state.describe(own or (), place), state.describe(stored, place))


def missing_tables(model: Any, without: Sequence[Table] = ()) -> list[Entry]:  # noqa: ANN401 - anything trackable
    """Return the entries of tables that the format does not hold. They are constants of the builder's code."""
    known = {id(one.table) for one in without}
    return [
        Entry(one.name, Fate.UNHELD, one.describe(), allowed=True)
        for one in list_tables(model)
        if id(one.table) not in known
    ]


def describe_missing(entries: Sequence[Entry], name: str) -> Iterator[str]:
    """Yield a note on states that the checkpoint `name` does not hold, because nothing can compare them."""
    missing = [f"{one.name} ({one.model})" for one in entries if one.fate is Fate.UNHELD]
    if missing:
        yield (
            f"{name} does not hold {', '.join(missing)}: the version has the values that the builder gives, and "
            "nothing has compared them with those of the training"
        )


def origins_of_states(model: Any, origin: Origin | None = None) -> Origins:  # noqa: ANN401 - a Keras model
    """Return the origins of the states and tables of a whole model. `origin` replaces that by kind."""
    found = {one.name: Origin(one.kind) for one in list_states(model) if one.read() != {}}
    found |= {one.name: Origin(OriginKind.VOCABULARY) for one in list_tables(model)}
    return found if origin is None else dict.fromkeys(found, origin)


def restore_states(model: Any, saved: SavedLayers, name: str) -> None:  # noqa: ANN401 - a Keras model
    """Set the saved values of a whole model that Keras has read, some of which Keras reads wrong or not at all.

    Raises CheckpointMismatch as `check_filled`, and as `fill_states`.
    """
    for state in list_states(model):
        stored = state.find(saved)
        if stored is not None and not state.reads_itself and state.read() != stored:
            _load(state, saved)
    check_filled(model, name)


def check_filled(model: Any, name: str) -> None:  # noqa: ANN401 - a Keras model
    """Raise CheckpointMismatch for a layer without the value that it needs. `name` is the model or its file."""
    empty = [one.name for one in list_states(model) if one.read() is None]
    if empty:
        raise CheckpointMismatch(
            f"{name} has no {', '.join(empty)}, which the model needs. Call adapt or set_vocabulary on the layer "
            "before the export, and save a model with it as .keras: other files do not hold it"
        )
