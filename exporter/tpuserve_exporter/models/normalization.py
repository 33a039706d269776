"""Normalization layers compute with constants made from their variables: who sets the variables must renew those."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def renew_constants(model: "keras.Model") -> None:
    """Make the layers' mean and variance anew from their variables, in the layers' compute dtype.

    Only Keras' own loading does so by itself. Other layers' `finalize_state` is left alone: Discretization would take
    its bins from statistics that nothing stores.
    """
    import keras

    for layer in model._flatten_layers(include_self=True):
        if isinstance(layer, keras.layers.Normalization) and layer.built:
            layer.finalize_state()
