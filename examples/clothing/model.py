"""The clothing classifier for training and, with `--model examples.clothing.model:build`, for `tpuserve export`."""

import keras


def build(dtype: str = "mixed_bfloat16") -> keras.Model:
    """Build a CNN with batch norm: `image` float32 [batch, 28, 28, 1] from 0 to 1 → `probabilities` float32 [batch, 4].

    `dtype` is the Keras policy of the hidden layers. The softmax stays in float32.
    """
    x = image = keras.Input((28, 28, 1), name="image", dtype="float32")
    for index, filters in enumerate((16, 32)):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"conv{index}", dtype=dtype)(x)
        x = keras.layers.BatchNormalization(momentum=0.8, name=f"norm{index}", dtype=dtype)(x)
        x = keras.layers.ReLU(name=f"relu{index}", dtype=dtype)(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool{index}", dtype=dtype)(x)
    x = keras.layers.GlobalAveragePooling2D(name="mean", dtype=dtype)(x)
    logits = keras.layers.Dense(4, name="logits", dtype=dtype)(x)
    probabilities = keras.layers.Activation("softmax", name="probabilities", dtype="float32")(logits)
    return keras.Model(image, probabilities, name="clothing")
