"""Training graphs in the style of TensorFlow 1's users. With `training` false, each model builds its inference graph.

A model is a function of `x` [batch, 6] (or [batch, 6, 6, 2]) and `training`. It returns the served tensor.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras.src.legacy_tf_layers.convolutional import conv2d
from tf_keras.src.legacy_tf_layers.core import flatten
from tf_keras.src.legacy_tf_layers.normalization import batch_normalization

from tests.exporter.tf1_graphs import dense

v1 = tf.compat.v1
ROWS = 32
Tensor = Any
Flag = Any  # a bool or a tensor
Model = Callable[[Tensor, Any], Tensor]


def _head(x: Tensor) -> Tensor:
    return tf.nn.softmax(dense(x, 3, "head"))


def _update(*operations: Tensor) -> None:
    for operation in operations:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, operation)


def _parameters(x: Tensor, *names: str) -> list[Tensor]:
    makers = {"gamma": v1.ones_initializer(), "variance": v1.ones_initializer()}
    initializers = (makers.get(name.rpartition("_")[2], v1.zeros_initializer()) for name in names)
    return [
        v1.get_variable(name, [x.shape[-1]], initializer=initializer, trainable="moving" not in name)
        for name, initializer in zip(names, initializers, strict=True)
    ]


def layers(x: Tensor, training: Flag) -> Tensor:
    """Normalise a dense layer by tf.layers.batch_normalization, which is not fused."""
    return _head(tf.nn.relu(batch_normalization(dense(x, 8, "hidden"), training=training)))


def layers_not_fused(x: Tensor, training: Flag) -> Tensor:
    """Normalise images, channels first, with fused=False."""
    y = batch_normalization(tf.transpose(x, [0, 3, 1, 2]), axis=1, training=training, fused=False)
    return _head(tf.reduce_mean(y, [2, 3]))


def layers_of_pictures(x: Tensor, training: Flag) -> Tensor:
    """Normalise images twice, fused."""
    y = tf.nn.relu(batch_normalization(x, training=training, name="first"))
    y = batch_normalization(conv2d(y, 4, 3, name="conv"), training=training, name="second")
    return _head(flatten(y))


def slim(x: Tensor, training: bool) -> Tensor:
    """Normalise like tf.contrib.layers.batch_norm: other names, and no scale by default."""
    y = dense(x, 8, "fc1")
    with v1.variable_scope("fc1/BatchNorm"):
        beta, moving_mean, moving_variance = _parameters(y, "beta", "moving_mean", "moving_variance")
        mean, variance = moving_mean, moving_variance
        if training:
            mean, variance = tf.nn.moments(y, [0])
            _update(
                tf_moving_average(moving_mean, mean, 0.9),
                tf_moving_average(moving_variance, variance, 0.9),
            )
        y = tf.nn.batch_normalization(y, mean, variance, beta, None, 1e-3)
    return _head(tf.nn.relu(y))


def slim_zero_debiased(x: Tensor, training: bool) -> Tensor:
    """Normalise like tf.contrib.layers.batch_norm with zero_debias_moving_mean=True."""
    y = dense(x, 8, "fc1")
    with v1.variable_scope("fc1/BatchNorm"):
        beta, moving_mean, moving_variance = _parameters(y, "beta", "moving_mean", "moving_variance")
        mean, variance = moving_mean, moving_variance
        if training:
            mean, variance = tf.nn.moments(y, [0])
            _update(
                tf_moving_average(moving_mean, mean, 0.9, zero_debias=True),
                tf_moving_average(moving_variance, variance, 0.9, zero_debias=False),
            )
        y = tf.nn.batch_normalization(y, mean, variance, beta, None, 1e-3)
    return _head(tf.nn.relu(y))


def tf_moving_average(variable: Tensor, value: Tensor, decay: float, zero_debias: bool = False) -> Tensor:
    from tensorflow.python.training import moving_averages

    return moving_averages.assign_moving_average(variable, value, decay, zero_debias=zero_debias)


def by_hand(x: Tensor, training: Flag) -> Tensor:
    """Normalise like many tutorials: moments, an ExponentialMovingAverage of them, and tf.cond."""
    y = dense(x, 8, "hidden")
    with v1.variable_scope("bn"):
        beta, gamma = _parameters(y, "beta", "gamma")
        batch_mean, batch_var = tf.nn.moments(y, [0], name="moments")
        ema = v1.train.ExponentialMovingAverage(decay=0.5)

        def with_update() -> tuple[Tensor, Tensor]:
            with tf.control_dependencies([ema.apply([batch_mean, batch_var])]):
                return tf.identity(batch_mean), tf.identity(batch_var)

        if isinstance(training, bool) and training:
            mean, var = with_update()
        elif isinstance(training, bool):
            ema.apply([batch_mean, batch_var])
            mean, var = ema.average(batch_mean), ema.average(batch_var)
        else:
            mean, var = v1.cond(training, with_update, lambda: (ema.average(batch_mean), ema.average(batch_var)))
        y = tf.nn.batch_normalization(y, mean, var, beta, gamma, 1e-3)
    return _head(y)


def population(x: Tensor, training: bool) -> Tensor:
    """Normalise with `pop_mean`, tf.assign and no EMA object. The variance is E[x²] - E[x]²."""
    y = tf.nn.relu(dense(x, 8, "hidden"))
    with v1.variable_scope("norm"):
        scale, shift, pop_mean = _parameters(y, "scale_gamma", "shift", "pop_mean")
        pop_var = v1.get_variable("pop_var", [8], initializer=v1.ones_initializer(), trainable=False)
        mean, var = pop_mean, pop_var
        if training:
            mean = tf.reduce_mean(y, axis=0, keepdims=True)
            var = tf.reduce_mean(tf.square(y), axis=0, keepdims=True) - tf.square(mean)
            _update(
                v1.assign(pop_mean, pop_mean * 0.8 + tf.squeeze(mean, 0) * (1 - 0.8)),
                v1.assign(pop_var, pop_var * 0.8 + tf.reshape(var, [-1]) * (1 - 0.8)),
            )
        y = (y - mean) / tf.sqrt(var + 1e-3) * scale + shift
    return _head(y)


def sufficient(x: Tensor, training: bool) -> Tensor:
    """Normalise from sums: sufficient_statistics and normalize_moments, with updates by assign_add."""
    y = dense(x, 8, "hidden")
    with v1.variable_scope("norm"):
        gamma, beta, moving_mean, moving_variance = _parameters(y, "gamma", "beta", "moving_mean", "moving_variance")
        mean, variance = moving_mean, moving_variance
        if training:
            count, total, squares, shift = tf.nn.sufficient_statistics(y, [0])
            mean, variance = tf.nn.normalize_moments(count, total, squares, shift)
            _update(
                v1.assign_add(moving_mean, (mean - moving_mean) * 0.1),
                v1.assign_add(moving_variance, 0.1 * (variance - moving_variance)),
            )
        y = tf.nn.batch_normalization(y, mean, variance, beta, gamma, 1e-3)
    return _head(y)


def weighted(x: Tensor, training: bool) -> Tensor:
    """Normalise by moments with a weight for each row."""
    y = dense(x, 8, "hidden")
    with v1.variable_scope("norm"):
        gamma, beta, moving_mean, moving_variance = _parameters(y, "gamma", "beta", "moving_mean", "moving_variance")
        mean, variance = moving_mean, moving_variance
        if training:
            mean, variance = tf.nn.weighted_moments(y, [0], tf.abs(x[:, :1]) + 0.5)
            _update(
                tf_moving_average(moving_mean, mean, 0.9),
                tf_moving_average(moving_variance, variance, 0.9),
            )
        y = tf.nn.batch_normalization(y, mean, variance, beta, gamma, 1e-3)
    return _head(y)


def keras_layers(x: Tensor, training: Flag) -> Tensor:
    """Call Keras layers in a TensorFlow 1 graph, one of them with training=True."""
    y = tf_keras.layers.Dense(8, activation="relu", name="hidden")(x)
    return _head(tf_keras.layers.BatchNormalization(name="bn")(y, training=training))


def fused_by_hand(x: Tensor, training: bool) -> Tensor:
    """Normalise fused, with custom averages whose variables have one name in two scopes."""
    pictures = tf.reshape(x, [-1, 1, 3, 2])
    mean = v1.get_variable("mean/average", [2], initializer=v1.zeros_initializer(), trainable=False)
    variance = v1.get_variable("variance/average", [2], initializer=v1.ones_initializer(), trainable=False)
    if training:
        y, batch_mean, batch_variance = v1.nn.fused_batch_norm(pictures, [1.0, 1.0], [0.0, 0.0])
        _update(tf_moving_average(mean, batch_mean, 0.9), tf_moving_average(variance, batch_variance, 0.9))
    else:
        y = v1.nn.fused_batch_norm(pictures, [1.0, 1.0], [0.0, 0.0], mean, variance, is_training=False)[0]
    return _head(tf.reshape(y, [-1, 6]))


def ensembling(x: Tensor, training: bool) -> Tensor:
    """Keep a moving average of the hidden layer for each row of the batch, for a loss."""
    y = dense(x, 8, "hidden")
    kept = v1.get_variable("ensemble", [ROWS, 8], initializer=v1.zeros_initializer(), trainable=False)
    if training:
        _update(tf_moving_average(kept, y, 0.6))
    return _head(tf.concat([tf.nn.relu(y), x], 1))


def codebook(x: Tensor, training: bool) -> Tensor:
    """Choose the nearest vector of a codebook. Each vector is a moving average of its nearest rows."""
    y = dense(x, 4, "hidden")
    random = v1.random_normal_initializer()
    vectors = v1.get_variable("vectors", [5, 4], initializer=random, trainable=False)
    counts = v1.get_variable("counts", [5], initializer=v1.ones_initializer(), trainable=False)
    sums = v1.get_variable("sums", [5, 4], initializer=random, trainable=False)
    nearest = tf.one_hot(tf.argmin(tf.reduce_sum((y[:, None] - vectors[None]) ** 2, -1), 1), 5)
    if training:
        count = tf_moving_average(counts, tf.reduce_sum(nearest, 0), 0.9)
        _update(
            v1.assign(vectors, tf_moving_average(sums, tf.matmul(nearest, y, transpose_a=True), 0.9) / count[:, None])
        )
    return _head(nearest @ vectors)


def without_statistics(x: Tensor, training: Flag) -> Tensor:
    """Whiten each batch, without averages."""
    mean, variance = tf.nn.moments(dense(x, 8, "hidden"), [0], name="whitening")
    return _head((dense(x, 8, "other") - mean) * tf.math.rsqrt(variance + 1e-3))


def renorm(x: Tensor, training: Flag) -> Tensor:
    return _head(batch_normalization(dense(x, 8, "hidden"), training=training, renorm=True))


def virtual(x: Tensor, training: Flag) -> Tensor:
    """Normalise by statistics of parts of the batch."""
    return _head(batch_normalization(dense(x, 8, "hidden"), training=training, virtual_batch_size=8))


def looped(x: Tensor, training: bool) -> Tensor:
    """Normalise by batch statistics in each step of a loop, without averages."""
    kernel = v1.get_variable("kernel", [6, 6])

    def step(index: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = tf.nn.moments(state @ kernel, [0])
        return index + 1, (state @ kernel - mean) * tf.math.rsqrt(variance + 1e-3)

    return _head(tf.while_loop(lambda index, _: index < 2, step, (0, x))[1])


def kept_share(x: Tensor, training: Flag, keep_prob: Tensor = None) -> Tensor:
    """Apply dropout with a placeholder `keep_prob`, like tutorials."""
    y = tf.nn.relu(dense(x, 8, "hidden"))
    if training is True:
        y = v1.nn.dropout(y, keep_prob=v1.placeholder(tf.float32, [], name="keep_prob"))
    return _head(y)


def layer_norm(x: Tensor, training: Flag) -> Tensor:
    mean, variance = tf.nn.moments(dense(x, 8, "hidden"), [1], keepdims=True)
    return _head((dense(x, 8, "other") - mean) * tf.math.rsqrt(variance + 1e-3))


def group_norm(x: Tensor, training: Flag) -> Tensor:
    """Normalise groups of channels of an image."""
    rows = tf.shape(x)[0]
    groups = tf.reshape(conv2d(x, 4, 3, name="conv"), [rows, 16, 2, 2])
    mean, variance = tf.nn.moments(groups, [1, 3], keepdims=True)
    return _head(tf.reshape((groups - mean) * tf.math.rsqrt(variance + 1e-3), [rows, 64]))


def instance_norm(x: Tensor, training: Flag) -> Tensor:
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    return _head(tf.reshape((x - mean) * tf.math.rsqrt(variance + 1e-3), [-1, 72]))


def l2_normalized(x: Tensor, training: Flag) -> Tensor:
    return _head(tf.math.l2_normalize(dense(x, 8, "hidden"), axis=-1))


def attention(x: Tensor, training: Flag) -> Tensor:
    """Attend within each row."""
    steps = tf.reshape(x, [-1, 3, 2])
    weights = tf.nn.softmax(tf.matmul(steps, steps, transpose_b=True))
    return _head(tf.reduce_mean(tf.matmul(weights, steps), 1))


def fused_layer_norm(x: Tensor, training: Flag) -> Tensor:
    """Normalise each row by the operation of batch norms, with rows as channels, like Keras 2."""
    rows = tf.shape(x)[0]
    y = tf.reshape(x, [1, rows, 6, 1])
    ones, zeros = tf.ones([rows]), tf.zeros([rows])
    y = v1.nn.fused_batch_norm(y, ones, zeros, epsilon=1e-3, data_format="NCHW")[0]
    return _head(tf.reshape(y, [rows, 6]))


def ranking(x: Tensor, training: Flag) -> Tensor:
    """Rank the rows as one list."""
    return tf.nn.softmax(dense(x, 1, "score"), axis=0)


def ranking_by_hand(x: Tensor, training: Flag) -> Tensor:
    scores = dense(x, 1, "score")
    powers = tf.exp(scores - tf.reduce_max(scores, axis=0))
    return powers / tf.reduce_sum(powers, axis=0)


def loudest(x: Tensor, training: Flag) -> Tensor:
    """Scale by the largest value of the whole batch."""
    return _head(x / tf.reduce_max(tf.abs(x)))


def quantized(x: Tensor, training: Flag) -> Tensor:
    """Learn ranges of activations like tf.contrib.quantize: outputs use the updated average."""
    y = dense(x, 8, "hidden")
    with v1.variable_scope("act_quant"):
        low = v1.get_variable("min", [], initializer=v1.constant_initializer(-1.0), trainable=False)
        high = v1.get_variable("max", [], initializer=v1.constant_initializer(1.0), trainable=False)
        least, most = low, high
        if training:
            least = tf_moving_average(low, tf.minimum(tf.reduce_min(y), 0.0), 0.5)
            most = tf_moving_average(high, tf.maximum(tf.reduce_max(y), 0.0), 0.5)
        y = tf.quantization.fake_quant_with_min_max_vars(y, least, most)
    return _head(y)


def counted(x: Tensor, training: Flag) -> Tensor:
    """Append columns of zeros, whose number of rows comes from the batch."""
    return _head(tf.concat([x, tf.zeros([tf.shape(x)[0], 8])], 1))


def projected(x: Tensor, training: Flag) -> Tensor:
    """Project the rows by random numbers of a constant seed, which are the same each time."""
    return _head(x @ tf.random.stateless_normal([6, 8], seed=[1, 2]))


def recurrent(x: Tensor, training: Flag) -> Tensor:
    """Run a loop whose initial state has a row of zeros for each row of the batch."""
    kernel = v1.get_variable("kernel", [6, 6])
    zeros = tf.zeros([tf.shape(x)[0], 6])
    return _head(
        tf.while_loop(
            lambda index, _: index < 3, lambda index, state: (index + 1, tf.tanh(x + state @ kernel)), (0, zeros)
        )[1]
    )


def recurrent_of_one_size(x: Tensor, training: Flag) -> Tensor:
    """Run the same loop with a constant number of rows."""
    kernel = v1.get_variable("kernel", [6, 6])
    zeros = tf.fill([ROWS, 6], 0.0)
    return _head(
        tf.while_loop(
            lambda index, _: index < 3, lambda index, state: (index + 1, tf.tanh(x + state @ kernel)), (0, zeros)
        )[1]
    )


@dataclass(frozen=True, slots=True)
class Saved:
    """A `.meta` file with a checkpoint, whose variables the inference graph can restore."""

    meta: Path
    model: Model
    shape: tuple[int, ...]

    def answer(self, x: np.ndarray) -> np.ndarray:
        """Return the inference output for `x`."""
        with tf.Graph().as_default(), v1.Session() as session:
            fed = v1.placeholder(tf.float32, [None, *self.shape], name="x")
            scores = self.model(fed, False)
            v1.train.Saver().restore(session, str(self.meta.with_suffix("")))
            answer: np.ndarray = session.run(scores, {fed: x})
            return answer


def save(
    folder: Path,
    model: Model,
    shape: tuple[int, ...] = (6,),
    training: Flag = True,
    rows: int | None = ROWS,
    steps: int = 5,
    feeds: Mapping[str, Flag] | None = None,
    control_flow_v2: bool = False,
    resource: bool = False,
) -> Saved:
    """Train only the moving statistics for a few steps, and save the files of a training script."""
    os.makedirs(folder, exist_ok=True)
    switch = v1.enable_control_flow_v2 if control_flow_v2 else v1.disable_control_flow_v2
    switch()
    try:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            v1.set_random_seed(2)
            with v1.variable_scope("", use_resource=resource):
                x = v1.placeholder(tf.float32, [rows, *shape], name="x")
                scores = tf.identity(model(x, training() if callable(training) else training), "scores")
            saver = v1.train.Saver()
            session.run(v1.global_variables_initializer())
            random = np.random.default_rng(1)
            updates = [*v1.get_collection(v1.GraphKeys.UPDATE_OPS), scores]
            fed = {graph.get_tensor_by_name(f"{name}:0"): value for name, value in (feeds or {}).items()}
            for _ in range(steps):
                session.run(updates, {x: random.normal(1.0, 2.0, (ROWS, *shape)), **fed})
            prefix = saver.save(session, str(folder / "model.ckpt"), steps)
        return Saved(Path(prefix + ".meta"), model, shape)
    finally:
        v1.enable_control_flow_v2()
