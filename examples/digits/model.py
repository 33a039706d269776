"""The digits classifier for training and, with `--model examples.digits.model:build`, for `tpuserve export`."""

import keras


def build(dtype: str = "mixed_bfloat16") -> keras.Model:
    """Build a small CNN: `image` float32 [batch, 8, 8, 1] from 0 to 1 → `probabilities` float32 [batch, 10].

    `dtype` is the Keras policy of the hidden layers. The softmax stays in float32, because its sum in bfloat16 is off
    by up to a percent.
    """
    image = keras.Input((8, 8, 1), name="image", dtype="float32")
    x = keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="conv1", dtype=dtype)(image)
    x = keras.layers.Conv2D(64, 3, padding="same", activation="relu", name="conv2", dtype=dtype)(x)
    x = keras.layers.MaxPooling2D(2, name="pool", dtype=dtype)(x)
    x = keras.layers.Flatten(name="flatten", dtype=dtype)(x)
    x = keras.layers.Dense(64, activation="relu", name="hidden", dtype=dtype)(x)
    x = keras.layers.Dropout(0.25, name="dropout", dtype=dtype)(x)
    logits = keras.layers.Dense(10, name="logits", dtype=dtype)(x)
    probabilities = keras.layers.Activation("softmax", name="probabilities", dtype="float32")(logits)
    return keras.Model(image, probabilities, name="digits")
