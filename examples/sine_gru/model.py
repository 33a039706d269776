"""A forecaster of series in Keras: for training with the state in the layer, for serving with the state as input."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

UNITS = 16


def stateful(series: int) -> "keras.Model":
    """Build the training model: float32 [series, steps, 1] to each next value. The layer keeps the state."""
    import keras

    values = keras.Input(batch_shape=(series, None, 1), name="values")
    output = keras.layers.GRU(UNITS, stateful=True, return_sequences=True, name="gru")(values)
    return keras.Model(values, keras.layers.Dense(1, name="forecast")(output))


def build() -> "keras.Model":
    """Build the served model: `value` [batch, 1] and `state` [batch, units] to `forecast` and the next `state`.

    Its layers have the same names as in `stateful`, so that it restores the checkpoint of that model.
    """
    import keras

    value, state = keras.Input((1,), name="value"), keras.Input((UNITS,), name="state")
    step = keras.layers.Reshape((1, 1))(value)
    output, after = keras.layers.GRU(UNITS, return_state=True, name="gru")(step, initial_state=state)
    forecast = keras.layers.Dense(1, name="forecast")(output)
    return keras.Model({"value": value, "state": state}, {"forecast": forecast, "state": after})
