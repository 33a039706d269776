"""Constants of Normalization layers. The layers compute them from variables, and a restore must update them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def renew_constants(model: "keras.Model") -> None:
    """Recompute the layers' mean and variance from their variables, in the layers' compute dtype.

    Keras does so only in its own loading. This function does not call `finalize_state` of other layers: Discretization
    would compute its bins from statistics that no file stores.
    """
    import keras

    for layer in model._flatten_layers(include_self=True):
        if isinstance(layer, keras.layers.Normalization) and layer.built:
            layer.finalize_state()
