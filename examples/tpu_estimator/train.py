"""Train like a run of TPUEstimator: save a name-based `model.ckpt-N` and the `.meta` of its TPU graph.

    python examples/tpu_estimator/train.py --out .demo/estimator
    tpuserve export .demo/estimator/model.ckpt-200.meta .demo/models/digits \\
        --input-tensor InfeedQueue/dequeue=image --output-tensor probabilities

TensorFlow no longer includes TPUEstimator, but still includes the functions that it called. This script builds the same
TPU graph without a TPU. A host fills the infeed, and two replicas run a loop of training steps that read batches from
it. The training itself runs the same model on the local device.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BATCH_PER_CORE = 32
CORES = 2
STEPS = 200


def train(out: Path, steps: int = STEPS) -> Path:
    """Train, and save checkpoint and graph into `out`. Returns the `.meta` file."""
    prefix = save_checkpoint(out, steps)
    return save_tpu_graph(prefix.with_name(prefix.name + ".meta"))


def save_checkpoint(out: Path, steps: int) -> Path:
    """Train for `steps` of one global batch, and save all variables by name, including the optimizer's."""
    import numpy as np
    import tensorflow as tf

    from examples.digits.data import load

    v1 = tf.compat.v1
    digits, _ = load()
    generator = np.random.default_rng(1)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        v1.train.get_or_create_global_step()
        image = v1.placeholder(tf.float32, [BATCH_PER_CORE * CORES, 8, 8, 1])
        label = v1.placeholder(tf.int32, [BATCH_PER_CORE * CORES])
        update = step(image, label, v1.train.AdamOptimizer(0.003))
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            rows = generator.choice(len(digits.images), BATCH_PER_CORE * CORES, replace=False)
            session.run(update, {image: digits.images[rows], label: digits.labels[rows]})
        return Path(v1.train.Saver().save(session, str(out / "model.ckpt"), steps, write_meta_graph=False))


def step(image: Any, label: Any, optimizer: Any) -> Any:  # noqa: ANN401 - tensors
    """Run one step of training. Returns the loss before the step."""
    import tensorflow as tf

    from examples.tpu_estimator.model import logits_of

    v1 = tf.compat.v1
    logits = logits_of(image, training=True)
    tf.nn.softmax(logits, name="probabilities")
    loss = v1.losses.sparse_softmax_cross_entropy(label, logits)
    update = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    with tf.control_dependencies([update, *v1.get_collection(v1.GraphKeys.UPDATE_OPS)]):
        return tf.identity(loss)


def save_tpu_graph(meta: Path, tensorflow_1: bool = True) -> Path:
    """Build TPUEstimator's training graph, with TensorFlow 1's or 2's control flow, and save it."""
    import tensorflow as tf
    from tensorflow.python.tpu import tpu_feed, training_loop

    v1 = tf.compat.v1
    with tf.Graph().as_default(), _loops_of_tensorflow_1() if tensorflow_1 else contextlib.nullcontext():
        v1.train.get_or_create_global_step()
        infeed = tpu_feed.InfeedQueue(number_of_tuple_elements=2)
        infeed.generate_enqueue_ops([_next_batch() for _ in range(CORES)], tpu_ordinal_function=lambda core: core)

        def train_step(last_loss: Any) -> Any:  # noqa: ANN401 - tensors
            with v1.device(v1.tpu.core(0)):
                image, label = infeed.generate_dequeue_op()
            return step(image, label, v1.tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.003)))

        def train_steps(replica: Any) -> Any:  # noqa: ANN401 - tensors
            """Run the loop. Each replica receives its number, which it must use."""
            tf.reshape(replica, [])
            return training_loop.repeat(100, train_step, [0.0])

        v1.tpu.shard(train_steps, [tf.range(CORES)], num_shards=CORES)
        v1.train.export_meta_graph(str(meta))
    return meta


def _next_batch() -> list[Any]:
    """Return the inputs of one core: an image and a label for each row, from the host's input pipeline."""
    import tensorflow as tf

    image, label = tf.zeros([BATCH_PER_CORE, 8, 8, 1]), tf.zeros([BATCH_PER_CORE], tf.int32)
    dataset = tf.data.Dataset.from_tensors((image, label)).repeat()
    return list(tf.compat.v1.data.make_initializable_iterator(dataset).get_next())


@contextlib.contextmanager
def _loops_of_tensorflow_1() -> Iterator[None]:
    """Use loops of Enter and Exit, as in TensorFlow 1."""
    import tensorflow as tf

    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoint and the graph.")
    parser.add_argument("--steps", type=int, default=STEPS, help="Number of steps (default: %(default)s).")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(train(arguments.out, arguments.steps))
