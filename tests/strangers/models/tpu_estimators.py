"""SavedModels as TPUEstimator wrote them: a graph for servers, and one for TPUs, with common variables.

`tf.estimator` is gone. The functions build the graphs with the same operations of TensorFlow.
"""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.python.framework import function
from tensorflow.python.ops import gen_tpu_ops
from tensorflow.python.tpu.tpu import rewrite_for_inference

v1 = tf.compat.v1
ROWS = np.random.default_rng(3).normal(size=(3, 5)).astype("f")


def _network(x):
    with v1.variable_scope("head", reuse=v1.AUTO_REUSE, use_resource=True):
        kernel = v1.get_variable("kernel", [5, 4], initializer=v1.random_normal_initializer(seed=5))
        bias = v1.get_variable("bias", [4], initializer=v1.random_normal_initializer(seed=6))
    return tf.nn.softmax(tf.tanh(tf.matmul(x, kernel) + bias))


def _rewritten(x):
    (scores,) = rewrite_for_inference(_network, [x])
    return scores


def _called(x):
    """Call the program on a core that a selector chooses, as `inference_on_tpu` did."""

    @function.Defun(tf.float32, capture_by_value=False)
    def program(x):
        x.set_shape([None, 5])
        return rewrite_for_inference(_network, [x])[0]

    # The first use of the function builds it, with the variables that it captures.
    _network(x)
    core = gen_tpu_ops.tpu_ordinal_selector()
    arguments = [x, *program.captured_inputs]
    (scores,) = gen_tpu_ops.tpu_partitioned_call(args=arguments, device_ordinal=core[0], Tout=[tf.float32], f=program)
    return scores


def _graph(model, add):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 5], name="x")
        scores = tf.identity(model(x), "scores")
        signature = v1.saved_model.predict_signature_def({"x": x}, {"scores": scores})
        return add(session, {"serving_default": signature}, x, scores)


def _save(folder, tpu_model, only_tpu):
    builder = v1.saved_model.Builder(str(folder / "saved"))

    def add_with_values(session, signatures, x, scores):
        session.run(v1.global_variables_initializer())
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        return session.run(scores, {x: ROWS})

    v1.disable_control_flow_v2()
    answer = _graph(_network, add_with_values)
    _graph(tpu_model, lambda _, signatures, *__: builder.add_meta_graph(["serve", "tpu"], signatures))
    v1.enable_control_flow_v2()
    builder.save()
    if only_tpu:  # such a graph cannot save its variables without a TPU
        file = folder / "saved/saved_model.pb"
        saved = SavedModel.FromString(file.read_bytes())
        del saved.meta_graphs[0]
        file.write_bytes(saved.SerializeToString())
    return {"serving_default": [({"x": ROWS}, {"scores": answer})]}


def save_two_graphs(folder):
    return _save(folder, _rewritten, only_tpu=False)


def save_tpu_graph(folder):
    return _save(folder, _rewritten, only_tpu=True)


def save_tpu_call(folder):
    return _save(folder, _called, only_tpu=True)
