"""Operations of neural networks: convolutions, poolings, normalisations, activations, cells."""

from typing import Final

import numpy as np
import tensorflow as tf

from tests.zoo.catalogue.operation import Operation, operation


def _ones(*shape: int) -> tf.Tensor:
    return tf.constant(np.full(shape, 0.5, np.float32))


def _lstm(x: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    gates = tf.matmul(tf.concat([x, h], 1), _ones(8, 16))
    i, j, f, o = tf.split(gates, 4, 1)
    c = c * tf.sigmoid(f) + tf.sigmoid(i) * tf.tanh(j)
    return {"h": tf.tanh(c) * tf.sigmoid(o), "c": c}


def _gru(x: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
    z = tf.sigmoid(tf.matmul(tf.concat([x, h], 1), _ones(8, 4)))
    return z * h + (1 - z) * tf.tanh(tf.matmul(x, _ones(4, 4)))


def _block_lstm(x: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.LSTMBlockCell(
        x=x, cs_prev=tf.zeros([2, 4]), h_prev=tf.zeros([2, 4]), w=_ones(8, 16), wci=_ones(4), wcf=_ones(4),
        wco=_ones(4), b=_ones(16),
    ).h  # fmt: skip


def _fused(x: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.nn.fused_batch_norm(x, _ones(3), _ones(3), _ones(3), _ones(3), is_training=False)[0]


def _fused_training(x: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.nn.fused_batch_norm(x, _ones(3), _ones(3), is_training=True)[0]


def _layer_norm(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, _ones(4), _ones(4), 1e-3)


def _channels(x: tf.Tensor) -> tf.Tensor:
    return tf.quantization.fake_quant_with_min_max_vars_per_channel(x, -_ones(3), _ones(3))


IMAGE, VOLUME, LINE = "f N,H,W,3", "f N,D,H,W,3", "f N,T,3"

NEURAL: Final[tuple[Operation, ...]] = (
    operation("conv1d", lambda x: tf.nn.conv1d(x, _ones(3, 3, 2), 1, "SAME"), x=LINE),
    operation("conv2d", lambda x: tf.nn.conv2d(x, _ones(3, 3, 3, 2), 1, "SAME"), x=IMAGE),
    operation("conv2d_valid", lambda x: tf.nn.conv2d(x, _ones(3, 3, 3, 2), 2, "VALID"), x=IMAGE),
    operation("conv2d_dilated", lambda x: tf.nn.conv2d(x, _ones(3, 3, 3, 2), 1, "SAME", dilations=2), x=IMAGE),
    operation("conv2d_free_channels", lambda x: tf.nn.conv2d(x, _ones(3, 3, 3, 2), 1, "SAME"), x="f N,H,W,C"),
    operation("conv3d", lambda x: tf.nn.conv3d(x, _ones(2, 2, 2, 3, 2), [1] * 5, "SAME"), x=VOLUME),
    operation("depthwise", lambda x: tf.nn.depthwise_conv2d(x, _ones(3, 3, 3, 1), [1] * 4, "SAME"), x=IMAGE),
    operation(
        "conv2d_transpose",
        lambda x: tf.nn.conv2d_transpose(
            x, _ones(3, 3, 2, 3), tf.concat([tf.shape(x)[:1], tf.shape(x)[1:3] * 2, [2]], 0), 2, "SAME"
        ),
        x=IMAGE,
    ),
    operation(
        "conv3d_transpose",
        lambda x: tf.nn.conv3d_transpose(
            x, _ones(2, 2, 2, 2, 3), tf.concat([tf.shape(x)[:1], tf.shape(x)[1:4] * 2, [2]], 0), 2, "SAME"
        ),
        x=VOLUME,
    ),
    operation("dilation2d", lambda x: tf.nn.dilation2d(x, _ones(3, 3, 3), [1] * 4, "SAME", "NHWC", [1] * 4), x=IMAGE),
    operation("max_pool1d", lambda x: tf.nn.max_pool1d(x, 2, 2, "VALID"), x=LINE),
    operation("max_pool1d_free", lambda x: tf.nn.max_pool1d(x, 2, 2, "VALID"), x="f N,T,C"),
    operation("max_pool2d", lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), x=IMAGE),
    operation("max_pool2d_free", lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), x="f N,H,W,C"),
    operation("max_pool3d", lambda x: tf.nn.max_pool3d(x, 2, 2, "VALID"), x=VOLUME),
    operation("max_pool_argmax", lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME")[1], x="f N,H,W,C"),
    operation("avg_pool1d", lambda x: tf.nn.avg_pool1d(x, 2, 2, "VALID"), x=LINE),
    operation("avg_pool2d", lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"), x="f N,H,W,C"),
    operation("avg_pool3d", lambda x: tf.nn.avg_pool3d(x, 2, 2, "SAME"), x="f N,D,H,W,C"),
    operation("global_average", lambda x: tf.reduce_mean(x, [1, 2]), x="f N,H,W,C"),
    operation("global_max", lambda x: tf.reduce_max(x, [1, 2]), x="f N,H,W,C"),
    operation("fractional_pool", lambda x: tf.nn.fractional_max_pool(x, 1.5, seed=1)[0], x="f N,H,W,C", repeats=False),
    operation("softmax", lambda x: tf.nn.softmax(x), x="f N,C"),
    operation("softmax_3d", lambda x: tf.nn.softmax(x), x="f N,T,C"),
    operation("softmax_axis", lambda x: tf.nn.softmax(x, 1), x="f N,T,C"),
    operation("log_softmax", lambda x: tf.nn.log_softmax(x), x="f N,C"),
    operation("layer_norm", _layer_norm, x="f N,T,4"),
    operation("fused_batch_norm", _fused, x=IMAGE),
    operation("fused_batch_norm_training", _fused_training, x=IMAGE),
    operation("lrn", lambda x: tf.nn.local_response_normalization(x), x="f N,H,W,C"),
    operation("dense", lambda x: tf.nn.relu(tf.matmul(x, _ones(4, 2)) + _ones(2)), x="f N,4"),
    operation("bias_add", lambda x: tf.nn.bias_add(x, _ones(3)), x="f N,T,3"),
    operation("relu", lambda x: tf.nn.relu(x), x="f N,C"),
    operation("elu", lambda x: tf.nn.elu(x), x="f N,C"),
    operation("l2_normalize", lambda x: tf.nn.l2_normalize(x, -1), x="f N,C"),
    operation("fake_quant", lambda x: tf.quantization.fake_quant_with_min_max_args(x), x="f N,C"),
    operation("fake_quant_channels", _channels, x="f N,3"),
    operation("fake_quant_channels_4d", _channels, x=IMAGE),
    operation(
        "quantize",
        lambda x: tf.quantization.dequantize(tf.quantization.quantize(x, -1.0, 1.0, tf.quint8).output, -1.0, 1.0),
        x="f N,C",
    ),
    operation(
        "quantize_and_dequantize",
        lambda x: tf.quantization.quantize_and_dequantize_v2(x, -1.0, 1.0, range_given=True),
        x="f N,3",
    ),
    operation("lstm_cell", _lstm, x="f N,4", h="f N,4", c="f N,4"),
    operation("block_lstm", _block_lstm, x="f N,4"),
    operation("gru_cell", _gru, x="f N,4", h="f N,4"),
    operation(
        "attention",
        lambda q, k, v: tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v),
        q="f N,T,4",
        k="f N,S,4",
        v="f N,S,4",
    ),
    operation("ctc_greedy", lambda x, n: tf.nn.ctc_greedy_decoder(x, n)[1], x="f T,N,C", n="i N=1"),
    operation("ctc_beam", lambda x, n: tf.nn.ctc_beam_search_decoder(x, n)[1], x="f T,N,C", n="i N=1"),
    operation(
        "sparse_softmax_loss",
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(logits=x, labels=y),
        x="f N,C",
        y="l N=0",
    ),
    operation("in_top_k", lambda x, y: tf.math.in_top_k(y, x, 1), x="f N,C", y="i N=0"),
)
