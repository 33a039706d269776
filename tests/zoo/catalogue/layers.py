"""Keras layers of the zoo, a model for each, and the inputs of its signature."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.zoo.catalogue.operation import Operation, read_inputs


@dataclass(frozen=True, slots=True)
class LayerModel:
    """A model of one layer. `form` has its inputs; it builds nothing."""

    form: Operation
    build: Callable[[], Any]

    @property
    def name(self) -> str:
        return self.form.name


def _layer(name: str, make: Callable[..., Any], **inputs: str) -> LayerModel:
    """Return a model that calls `make` with `keras.layers` and its inputs. Their first dimension is the batch."""
    form = Operation(name, read_inputs(inputs), _unbuilt)

    def build() -> object:
        # Processes that fork must not have started TensorFlow, which Keras does.
        import keras

        keras.utils.set_random_seed(1)
        given = [
            keras.Input(one.shape[1:], dtype="string" if one.dtype.hasobject else one.dtype.name, name=key)
            for key, one in form.inputs.items()
        ]
        return keras.Model(given, make(keras.layers, *given), name=name)

    return LayerModel(form, build)


def _unbuilt(**inputs: object) -> None:
    raise TypeError(f"a layer is built by Keras, not from {inputs}")


IMAGE, LINE = "f N,H,W,3", "f N,T,4"

LAYERS: Final[tuple[LayerModel, ...]] = (
    _layer("k_dense", lambda k, x: k.Dense(3)(x), x="f N,4"),
    _layer("k_conv1d", lambda k, x: k.Conv1D(3, 2)(x), x=LINE),
    _layer("k_conv2d", lambda k, x: k.Conv2D(3, 2)(x), x=IMAGE),
    _layer("k_conv3d", lambda k, x: k.Conv3D(3, 2)(x), x="f N,D,H,W,3"),
    _layer("k_separable_conv2d", lambda k, x: k.SeparableConv2D(3, 2)(x), x=IMAGE),
    _layer("k_depthwise_conv2d", lambda k, x: k.DepthwiseConv2D(2)(x), x=IMAGE),
    _layer("k_conv2d_transpose", lambda k, x: k.Conv2DTranspose(3, 2)(x), x=IMAGE),
    _layer("k_global_average_2d", lambda k, x: k.GlobalAveragePooling2D()(x), x=IMAGE),
    _layer("k_global_average_free", lambda k, x: k.GlobalAveragePooling2D()(x), x="f N,H,W,C"),
    _layer("k_global_max_1d", lambda k, x: k.GlobalMaxPooling1D()(x), x="f N,T,C"),
    _layer("k_max_1d", lambda k, x: k.MaxPooling1D(2)(x), x="f N,T,C"),
    _layer("k_max_2d", lambda k, x: k.MaxPooling2D(2)(x), x="f N,H,W,C"),
    _layer("k_average_2d", lambda k, x: k.AveragePooling2D(2)(x), x="f N,H,W,C"),
    _layer("k_average_3d", lambda k, x: k.AveragePooling3D(2)(x), x="f N,D,H,W,C"),
    _layer("k_softmax", lambda k, x: k.Softmax()(x), x="f N,T,C"),
    _layer("k_lstm", lambda k, x: k.LSTM(3)(x), x=LINE),
    _layer("k_lstm_masked", lambda k, x: k.LSTM(3)(k.Masking()(x)), x=LINE),
    _layer("k_gru", lambda k, x: k.GRU(3, return_sequences=True)(x), x=LINE),
    _layer("k_bidirectional", lambda k, x: k.Bidirectional(k.LSTM(2))(x), x=LINE),
    _layer("k_multi_head", lambda k, x: k.MultiHeadAttention(2, 2)(x, x), x=LINE),
    _layer("k_attention", lambda k, q, v: k.Attention()([q, v]), q="f N,T,4", v="f N,S,4"),
    _layer("k_einsum_dense", lambda k, x: k.EinsumDense("btc,cd->btd", [None, 3])(x), x=LINE),
    _layer("k_layer_norm", lambda k, x: k.LayerNormalization()(x), x=LINE),
    _layer("k_batch_norm", lambda k, x: k.BatchNormalization()(x), x=IMAGE),
    _layer("k_group_norm", lambda k, x: k.GroupNormalization(3)(x), x=IMAGE),
    _layer("k_embedding", lambda k, x: k.Embedding(5, 3)(x), x="i N,T=1"),
    _layer("k_reshape", lambda k, x: k.Reshape((-1, 2))(x), x=LINE),
    _layer("k_flatten", lambda k, x: k.Flatten()(x), x=LINE),
    _layer("k_up_sampling", lambda k, x: k.UpSampling2D(2)(x), x="f N,H,W,C"),
    _layer("k_zero_padding", lambda k, x: k.ZeroPadding2D(1)(x), x="f N,H,W,C"),
    _layer("k_resizing", lambda k, x: k.Resizing(4, 4)(x), x=IMAGE),
    _layer("k_concatenate", lambda k, a, b: k.Concatenate()([a, b]), a="f N,T,4", b="f N,T,2"),
    _layer("k_dot", lambda k, a, b: k.Dot(1)([a, b]), a="f N,4", b="f N,4"),
    _layer("k_normalization", lambda k, x: k.Normalization(mean=[0.0] * 4, variance=[1.0] * 4)(x), x="f N,4"),
    _layer("k_category_encoding", lambda k, x: k.CategoryEncoding(4, "multi_hot")(x), x="i N,T=1"),
    _layer("k_string_lookup", lambda k, x: k.StringLookup(vocabulary=["a", "b"])(x), x="s N,3"),
    _layer(
        "k_text_vectorization",
        lambda k, x: k.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4)(x),
        x="s N,1",
    ),
)
