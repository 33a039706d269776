"""TensorFlow 1 graphs saved during training like in scripts of that time: a checkpoint with its .meta.

Each function builds the layers between `features` and `probabilities`, for training or for inference.
"""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

CLASSES = 3
DECAY = 0.9


def bn_rank2(x, training):
    x = tf.layers.dense(x, 8)
    x = tf.layers.batch_normalization(x, training=training, momentum=DECAY)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def bn_unfused(x, training):
    x = tf.layers.conv2d(x, 4, 3)
    x = tf.layers.batch_normalization(x, training=training, momentum=DECAY, fused=False)
    return tf.layers.dense(tf.layers.flatten(tf.nn.relu(x)), CLASSES)


def bn_channels_first(x, training):
    x = tf.transpose(tf.layers.conv2d(x, 4, 3), [0, 3, 1, 2])
    x = tf.layers.batch_normalization(x, axis=1, training=training, momentum=DECAY, fused=False)
    return tf.layers.dense(tf.reduce_mean(tf.nn.relu(x), [2, 3]), CLASSES)


def bn_fused(x, training):
    x = tf.layers.conv2d(x, 4, 3)
    x = tf.layers.batch_normalization(x, training=training, momentum=DECAY)
    x = tf.layers.batch_normalization(tf.layers.conv2d(tf.nn.relu(x), 4, 3), training=training, momentum=DECAY)
    return tf.layers.dense(tf.layers.flatten(tf.nn.relu(x)), CLASSES)


def bn_renorm(x, training):
    x = tf.layers.dense(x, 8)
    x = tf.layers.batch_normalization(x, training=training, momentum=DECAY, renorm=True)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def bn_population(x, training):
    """Normalize like tutorials: moments of the batch update two variables, which inference uses."""
    x = tf.layers.dense(x, 8)
    scale = tf.Variable(tf.ones([8]))
    beta = tf.Variable(tf.zeros([8]))
    pop_mean = tf.Variable(tf.zeros([8]), trainable=False)
    pop_var = tf.Variable(tf.ones([8]), trainable=False)
    if training:
        batch_mean, batch_var = tf.nn.moments(x, [0])
        train_mean = tf.assign(pop_mean, pop_mean * DECAY + batch_mean * (1 - DECAY))
        train_var = tf.assign(pop_var, pop_var * DECAY + batch_var * (1 - DECAY))
        with tf.control_dependencies([train_mean, train_var]):
            x = tf.nn.batch_normalization(x, batch_mean, batch_var, beta, scale, 1e-3)
    else:
        x = tf.nn.batch_normalization(x, pop_mean, pop_var, beta, scale, 1e-3)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def bn_ema(x, training):
    """Normalize like forum answers of that time: ExponentialMovingAverage keeps the moments."""
    with tf.variable_scope("bn"):
        x = tf.layers.dense(x, 8)
        beta = tf.Variable(tf.constant(0.0, shape=[8]), name="beta", trainable=True)
        gamma = tf.Variable(tf.constant(1.0, shape=[8]), name="gamma", trainable=True)
        batch_mean, batch_var = tf.nn.moments(x, [0], name="moments")
        ema = tf.train.ExponentialMovingAverage(decay=DECAY)
        ema_apply_op = ema.apply([batch_mean, batch_var])
        if training:
            with tf.control_dependencies([ema_apply_op]):
                mean, var = tf.identity(batch_mean), tf.identity(batch_var)
        else:
            mean, var = ema.average(batch_mean), ema.average(batch_var)
        x = tf.nn.batch_normalization(x, mean, var, beta, gamma, 1e-3)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def bn_ema_cond(x, training):
    """Normalize like `bn_ema`, with tf.cond on a placeholder for the training phase."""
    phase_train = tf.placeholder(tf.bool, [], name="phase_train")
    with tf.variable_scope("bn"):
        x = tf.layers.dense(x, 8)
        beta = tf.Variable(tf.constant(0.0, shape=[8]), name="beta", trainable=True)
        gamma = tf.Variable(tf.constant(1.0, shape=[8]), name="gamma", trainable=True)
        batch_mean, batch_var = tf.nn.moments(x, [0], name="moments")
        ema = tf.train.ExponentialMovingAverage(decay=DECAY)

        def mean_var_with_update():
            ema_apply_op = ema.apply([batch_mean, batch_var])
            with tf.control_dependencies([ema_apply_op]):
                return tf.identity(batch_mean), tf.identity(batch_var)

        mean, var = tf.cond(
            phase_train, mean_var_with_update, lambda: (ema.average(batch_mean), ema.average(batch_var))
        )
        x = tf.nn.batch_normalization(x, mean, var, beta, gamma, 1e-3)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def bn_slim(x, training):
    """Use names and operations of tf.contrib.slim: no gamma, and updates in a collection."""
    with tf.variable_scope("MobilenetV1/Conv2d_0"):
        weights = tf.get_variable("weights", [3, 3, 1, 4], initializer=tf.glorot_uniform_initializer())
        x = tf.nn.conv2d(x, weights, [1, 1, 1, 1], "SAME")
        with tf.variable_scope("BatchNorm"):
            beta = tf.get_variable("beta", [4], initializer=tf.zeros_initializer())
            moving_mean = tf.get_variable("moving_mean", [4], initializer=tf.zeros_initializer(), trainable=False)
            moving_variance = tf.get_variable(
                "moving_variance", [4], initializer=tf.ones_initializer(), trainable=False
            )
            gamma = tf.constant(1.0, shape=[4])
            if training:
                x, mean, variance = tf.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3)
                for moving, now in ((moving_mean, mean), (moving_variance, variance)):
                    update = tf.assign_sub(moving, (moving - now) * (1 - DECAY), name="AssignMovingAvg")
                    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
            else:
                x, _, _ = tf.nn.fused_batch_norm(
                    x, gamma, beta, moving_mean, moving_variance, epsilon=1e-3, is_training=False
                )
    x = tf.nn.relu6(x)
    with tf.variable_scope("MobilenetV1/Logits"):
        weights = tf.get_variable("weights", [4, CLASSES], initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable("biases", [CLASSES], initializer=tf.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(tf.reduce_mean(x, [1, 2]), weights), biases)


def bn_no_statistics(x, training):
    """Normalize by moments of the batch that no variable keeps, so that the graph has no inference mode."""
    x = tf.layers.dense(x, 8)
    mean, variance = tf.nn.moments(x, [0], keep_dims=True)
    x = (x - mean) / tf.sqrt(variance + 1e-3)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def layer_norm(x, training):
    """Normalize each row, in training and in inference."""
    x = tf.layers.dense(x, 8)
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    gamma = tf.get_variable("LayerNorm/gamma", [8], initializer=tf.ones_initializer())
    beta = tf.get_variable("LayerNorm/beta", [8], initializer=tf.zeros_initializer())
    x = tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def instance_norm(x, training):
    """Normalize each image's channels, in training and in inference."""
    x = tf.layers.conv2d(x, 4, 3)
    mean, variance = tf.nn.moments(x, [1, 2], keep_dims=True)
    x = (x - mean) * tf.rsqrt(variance + 1e-3)
    return tf.layers.dense(tf.layers.flatten(tf.nn.relu(x)), CLASSES)


def dropout_keep_prob(x, training):
    keep_prob = tf.placeholder(tf.float32, name="keep_prob")
    x = tf.nn.relu(tf.layers.dense(x, 16))
    x = tf.nn.dropout(x, keep_prob)
    return tf.layers.dense(x, CLASSES)


def dropout_rate(x, training):
    x = tf.nn.relu(tf.layers.dense(x, 16))
    x = tf.layers.dropout(x, rate=0.4, training=training)
    return tf.layers.dense(x, CLASSES)


def is_training_default(x, training):
    """Use batch norm and dropout with tf.cond, on a placeholder whose default is False, as for serving."""
    is_training = tf.placeholder_with_default(False, [], name="is_training")
    x = tf.layers.dense(x, 8)
    x = tf.layers.batch_normalization(x, training=is_training, momentum=DECAY)
    x = tf.layers.dropout(tf.nn.relu(x), rate=0.4, training=is_training)
    return tf.layers.dense(x, CLASSES)


def is_training_default_true(x, training):
    """Use a placeholder whose default is True, so that the user must pass the value for inference."""
    is_training = tf.placeholder_with_default(True, [], name="is_training")
    x = tf.layers.dense(x, 8)
    x = tf.layers.batch_normalization(x, training=is_training, momentum=DECAY)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def is_training_placeholder(x, training):
    is_training = tf.placeholder(tf.bool, [], name="is_training")
    x = tf.layers.dense(x, 8)
    x = tf.layers.batch_normalization(x, training=is_training, momentum=DECAY)
    return tf.layers.dense(tf.nn.relu(x), CLASSES)


def lstm_static(x, training):
    cell = tf.nn.rnn_cell.BasicLSTMCell(8)
    outputs, _ = tf.nn.static_rnn(cell, tf.unstack(x, 5, 1), dtype=tf.float32)
    return tf.layers.dense(outputs[-1], CLASSES)


def lstm_dynamic(x, training):
    """Use a while loop, and dropout around the cell in training."""
    cell = tf.nn.rnn_cell.LSTMCell(8)
    if training:
        cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.6)
    _, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    return tf.layers.dense(state.h, CLASSES)


def partitioned_embedding(ids, training):
    with tf.variable_scope("words", partitioner=tf.fixed_size_partitioner(3)):
        table = tf.get_variable("table", [20, 4], initializer=tf.random_normal_initializer())
    x = tf.nn.embedding_lookup(table, ids, partition_strategy="div")
    return tf.layers.dense(tf.reduce_mean(x, 1), CLASSES)


def zeros_batch(ids, training):
    """Use a zero state for each row. TensorFlow folds the number of rows if the placeholder has one."""
    table = tf.get_variable("table", [20, 4], initializer=tf.random_normal_initializer())
    cell = tf.nn.rnn_cell.BasicRNNCell(8)
    state = tf.zeros([tf.shape(ids)[0], 8])
    for step in range(6):
        output, state = cell(tf.nn.embedding_lookup(table, ids[:, step]), state)
    return tf.layers.dense(output, CLASSES)


def input_pipeline(x, training):
    """Read from an iterator over a dataset instead of a placeholder."""
    return tf.layers.dense(tf.nn.relu(tf.layers.dense(x, 8)), CLASSES)


def moving_average(x, training):
    """Keep an average of the weights, which inference restores instead of the weights."""
    return tf.layers.dense(tf.nn.relu(tf.layers.dense(x, 8)), CLASSES)


def vocabulary(ids, training):
    """Use a hash table, which is not a variable."""
    keys = tf.lookup.KeyValueTensorInitializer(tf.range(20, dtype=tf.int32), tf.range(20, 0, -1, dtype=tf.int32))
    table = tf.lookup.StaticHashTable(keys, 0)
    embedding = tf.get_variable("table", [21, 4], initializer=tf.random_normal_initializer())
    return tf.layers.dense(tf.reduce_mean(tf.nn.embedding_lookup(embedding, table.lookup(ids)), 1), CLASSES)


def python_function(x, training):
    """Use a Python function, whose code the graph file does not contain."""
    x = tf.py_func(lambda one: one * 2, [x], tf.float32)
    x.set_shape([None, 6])
    return tf.layers.dense(x, CLASSES)


def ranking(x, training):
    """Score the items of one list, which is the batch."""
    x = tf.nn.relu(tf.layers.dense(x, 8))
    return tf.layers.dense(x, 1)


# Shape and dtype of `features`, by idiom.
VECTOR, PICTURE, SEQUENCE, IDS = (
    ([None, 6], "float32"),
    ([None, 6, 6, 1], "float32"),
    ([None, 5, 4], "float32"),
    ([None, 6], "int32"),
)
FEATURES = {
    "bn_unfused": PICTURE,
    "bn_channels_first": PICTURE,
    "bn_fused": PICTURE,
    "bn_slim": PICTURE,
    "instance_norm": PICTURE,
    "lstm_static": SEQUENCE,
    "lstm_dynamic": SEQUENCE,
    "partitioned_embedding": IDS,
    "vocabulary": IDS,
    "zeros_batch": ([32, 6], "int32"),
}
# Values fed in training and in inference.
FEEDS = {
    "keep_prob:0": (0.5, 1.0),
    "is_training:0": (True, False),
    "phase_train:0": (True, False),
}


def save(folder, idiom):
    """Train, save `model.ckpt-30` with its .meta, and return the outputs of the inference graph."""
    layers, (shape, dtype) = globals()[idiom], FEATURES.get(idiom, VECTOR)
    data = np.random.default_rng(5)

    def draw(rows):
        if dtype == "int32":
            return data.integers(0, 20, [rows, *shape[1:]]).astype(np.int32)
        return data.normal(0.7, 1.5, [rows, *shape[1:]]).astype(np.float32)

    def outputs(logits):
        over = 0 if idiom == "ranking" else -1
        return tf.nn.softmax(logits, axis=over, name="probabilities")

    def feeds(graph, index):
        return {
            name: values[index]
            for name, values in FEEDS.items()
            if name[:-2] in {operation.name for operation in graph.get_operations()}
        }

    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.set_random_seed(3)
        if idiom == "input_pipeline":
            features = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(draw(32)).repeat()).get_next()
        else:
            features = tf.placeholder(dtype, shape, name="features")
        labels = tf.placeholder(tf.int32, [None], name="labels")
        logits = layers(features, True)
        outputs(logits)
        if idiom == "ranking":
            loss = tf.reduce_mean(tf.square(logits[:, 0] - tf.cast(labels, tf.float32)))
        else:
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_or_create_global_step()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.train.AdamOptimizer(0.02).minimize(loss, global_step=step)
        average = tf.train.ExponentialMovingAverage(DECAY)
        if idiom == "moving_average":
            with tf.control_dependencies([train_op]):
                train_op = average.apply(tf.trainable_variables())
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for _ in range(30):
            x = draw(32)
            y = (np.abs(x).reshape(32, -1).sum(1) * (1 if dtype == "int32" else 3)).astype(np.int32) % CLASSES
            session.run(train_op, {features: x, labels: y, **feeds(graph, 0)})
        prefix = tf.train.Saver().save(session, str(folder / "model.ckpt"), step)

    with tf.Graph().as_default() as graph, tf.Session() as session:
        features = tf.placeholder(dtype, [None, *shape[1:]], name="features")
        probabilities = outputs(layers(features, False))
        averaged = idiom == "moving_average"
        tf.train.Saver(average.variables_to_restore() if averaged else None).restore(session, prefix)
        session.run(tf.tables_initializer())
        requested = [draw(32)] if shape[0] else [draw(5), draw(3)]
        return {
            "serving_default": [
                ({"features": x}, {"probabilities": session.run(probabilities, {features: x, **feeds(graph, 1)})})
                for x in requested
            ]
        }


def save_tpu(folder):
    """Save like TPUEstimator: the replicated graph with its infeed, and a checkpoint of its variables."""
    from tensorflow.python.tpu import tpu_feed, training_loop

    data = np.random.default_rng(5)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        features = tf.placeholder(tf.float32, [None, 6])
        labels = tf.placeholder(tf.int32, [None])
        train_op = _tpu_step(features, labels, tf.train.AdamOptimizer(0.02))
        session.run(tf.global_variables_initializer())
        for _ in range(30):
            x = data.normal(0.7, 1.5, [32, 6]).astype(np.float32)
            session.run(train_op, {features: x, labels: (np.abs(x).sum(1) * 3).astype(np.int32) % CLASSES})
        prefix = tf.train.Saver().save(session, str(folder / "model.ckpt"), 30, write_meta_graph=False)

    with tf.Graph().as_default():
        infeed = tpu_feed.InfeedQueue(number_of_tuple_elements=2)
        batches = [[tf.zeros([16, 6]), tf.zeros([16], tf.int32)] for _ in range(2)]
        infeed.generate_enqueue_ops(batches, tpu_ordinal_function=lambda core: core)

        def step(loss):
            x, y = infeed.generate_dequeue_op()
            return _tpu_step(x, y, tf.tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.02)))

        tf.tpu.shard(lambda: training_loop.repeat(100, step, [0.0]), num_shards=2)
        tf.train.export_meta_graph(f"{prefix}.meta")

    with tf.Graph().as_default(), tf.Session() as session:
        features = tf.placeholder(tf.float32, [None, 6])
        probabilities = tf.nn.softmax(_tpu_layers(features, False))
        tf.train.Saver().restore(session, prefix)
        requested = [data.normal(0.7, 1.5, [rows, 6]).astype(np.float32) for rows in (5, 3)]
        return {
            "serving_default": [
                ({"features": x}, {"probabilities": session.run(probabilities, {features: x})}) for x in requested
            ]
        }


def _tpu_layers(x, training):
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE, use_resource=True):
        x = tf.layers.dense(x, 8, name="hidden")
        x = tf.layers.batch_normalization(x, training=training, momentum=DECAY, name="norm")
        x = tf.layers.dropout(tf.nn.relu(x), 0.3, training=training)
        return tf.layers.dense(x, CLASSES, name="scores")


def _tpu_step(features, labels, optimizer):
    logits = _tpu_layers(features, True)
    tf.nn.softmax(logits, name="probabilities")
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    with tf.control_dependencies([train_op]):
        return tf.identity(loss)
