"""A digits CNN in the style of TPUEstimator: a function of tensors that creates its variables by name."""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def logits_of(image: Any, training: bool) -> Any:  # noqa: ANN401 - tensors
    """Return logits: `image` [batch, 8, 8, 1] → [batch, 10], by convolution, batch norm, dropout and a dense layer."""
    with v1.variable_scope("cnn", reuse=v1.AUTO_REUSE):
        kernel = v1.get_variable("conv/kernel", [3, 3, 1, 16])
        hidden = tf.nn.relu(batch_norm(tf.nn.conv2d(image, kernel, 2, "SAME"), training))
        # In a graph for a TPU the batch size is known, because it is fixed there.
        flat = tf.reshape(hidden, [image.shape[0] or -1, 4 * 4 * 16])
        if training:
            flat = v1.nn.dropout(flat, rate=0.3)
        kernel = v1.get_variable("logits/kernel", [4 * 4 * 16, 10])
        return tf.nn.bias_add(flat @ kernel, v1.get_variable("logits/bias", [10], initializer=v1.zeros_initializer()))


def batch_norm(x: Any, training: bool) -> Any:  # noqa: ANN401 - tensors
    """Normalize the channels of `x`. In training, batch statistics update the statistics for inference."""
    size = [x.shape[-1]]
    with v1.variable_scope("norm"):
        gamma = v1.get_variable("gamma", size, initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", size, initializer=v1.zeros_initializer())
        mean = v1.get_variable("moving_mean", size, initializer=v1.zeros_initializer(), trainable=False)
        variance = v1.get_variable("moving_variance", size, initializer=v1.ones_initializer(), trainable=False)
    if not training:
        return v1.nn.fused_batch_norm(x, gamma, beta, mean, variance, is_training=False)[0]
    normalized, batch_mean, batch_variance = v1.nn.fused_batch_norm(x, gamma, beta)
    for moving, now in ((mean, batch_mean), (variance, batch_variance)):
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moving.assign_sub((moving - now) * 0.1))
    return normalized


def predict(image: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
    """Return the served outputs, for `tpuserve export model.ckpt-N --model examples.tpu_estimator.model:predict`."""
    return {"probabilities": tf.nn.softmax(logits_of(image, training=False))}
