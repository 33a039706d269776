"""Operations that move elements: gathers, scatters, segments, shapes, slices and paddings."""

from typing import Final

import tensorflow as tf

from tests.zoo.catalogue.operation import Operation, operation

TABLE: Final = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]

MOVES: Final[tuple[Operation, ...]] = (
    operation("where", lambda x: tf.where(x), x="b N,C"),
    operation("select", lambda c, x, y: tf.where(c, x, y), c="b N,C", x="f N,C", y="f N,C"),
    operation("boolean_mask", lambda x, m: tf.boolean_mask(x, m), x="f N,C", m="b N"),
    operation("gather", lambda x, i: tf.gather(x, i), x="f N,C", i="l T=0"),
    operation("gather_axis", lambda x, i: tf.gather(x, i, axis=1), x="f N,T,C", i="l S=0"),
    operation("gather_batch", lambda x, i: tf.gather(x, i, batch_dims=1), x="f N,T,C", i="l N,S=0"),
    operation("gather_nd", lambda x, i: tf.gather_nd(x, i), x="f N,C", i="l T,2=0"),
    operation("gather_nd_free", lambda x, i: tf.gather_nd(x, i), x="f N,C", i="l T,K=0", sizes={"K": 2}),
    operation("scatter_nd", lambda i, u: tf.scatter_nd(i, u, [4, 3]), i="i T,1=1", u="f T,3"),
    operation(
        "scatter_nd_rank_3", lambda i: tf.scatter_nd(i, tf.ones([1, 1]), [4]), i="i N,T,1=1", sizes={"N": 1, "T": 1}
    ),
    operation(
        "tensor_scatter_update", lambda x, i, u: tf.tensor_scatter_nd_update(x, i, u), x="f N,3", i="i T,1=1", u="f T,3"
    ),
    operation(
        "tensor_scatter_max", lambda x, i, u: tf.tensor_scatter_nd_max(x, i, u), x="f N,3", i="i T,1=1", u="f T,3"
    ),
    operation("segment_sum", lambda x, i: tf.math.segment_sum(x, i), x="f N,C", i="i N=1"),
    operation("segment_mean", lambda x, i: tf.math.segment_mean(x, i), x="f N,C", i="i N=1"),
    operation("unsorted_segment_sum", lambda x, i: tf.math.unsorted_segment_sum(x, i, 4), x="f N,C", i="i N=1"),
    operation("unsorted_segment_max", lambda x, i: tf.math.unsorted_segment_max(x, i, 4), x="f N,T,C", i="i N,T=1"),
    operation("sparse_segment_sum", lambda x, i, s: tf.sparse.segment_sum(x, i, s), x="f N,C", i="i T=0", s="i T=1"),
    operation("one_hot", lambda x: tf.one_hot(x, 5), x="l N,T=1"),
    operation("embedding", lambda x: tf.nn.embedding_lookup(tf.constant(TABLE), x), x="l N,T=1"),
    operation("embedding_mean", lambda x: tf.reduce_mean(tf.gather(TABLE, x), 1), x="i N,T=1"),
    operation("dynamic_partition", lambda x, p: tf.dynamic_partition(x, p, 2)[1], x="f N,C", p="i N=1"),
    operation("dynamic_stitch", lambda i, x: tf.dynamic_stitch([i], [x]), i="i N=1", x="f N,C"),
    operation("invert_permutation", lambda x: tf.math.invert_permutation(x), x="i N=0", sizes={"N": 1}),
    operation("pad", lambda x: tf.pad(x, [[0, 0], [1, 2]]), x="f N,C"),
    operation("mirror_pad", lambda x: tf.pad(x, [[0, 0], [1, 1]], "REFLECT"), x="f N,C"),
    operation("symmetric_pad", lambda x: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "SYMMETRIC"), x="f N,H,W,C"),
    operation("reshape", lambda x: tf.reshape(x, [-1, 4]), x="f N,T,4"),
    operation("flatten", lambda x: tf.reshape(x, [tf.shape(x)[0], -1]), x="f N,T,C"),
    operation("transpose", lambda x: tf.transpose(x, [0, 2, 1]), x="f N,T,C"),
    operation("tile", lambda x: tf.tile(x, [1, 3]), x="f N,C"),
    operation("repeat", lambda x: tf.repeat(x, 2, axis=1), x="f N,C"),
    operation("slice", lambda x: tf.slice(x, [0, 1], [-1, 2]), x="f N,C"),
    operation("strided_slice", lambda x: x[:, ::-2, 0], x="f N,T,C"),
    operation("split", lambda x: tf.split(x, 3, axis=1)[1], x="f N,C"),
    operation("split_v", lambda x: tf.split(x, [1, 2], axis=1)[1], x="f N,3"),
    operation("unstack", lambda x: tf.unstack(x, 3, axis=1)[2], x="f N,3,C"),
    operation("concat", lambda x, y: tf.concat([x, y], 1), x="f N,C", y="f N,D"),
    operation("stack", lambda x, y: tf.stack([x, y], 1), x="f N,C", y="f N,C"),
    operation("broadcast_to", lambda x: tf.broadcast_to(x, [3, tf.shape(x)[1]]), x="f N,C", sizes={"N": 1}),
    operation("broadcast_rows", lambda x: tf.broadcast_to(x[:, None], [tf.shape(x)[0], 4, tf.shape(x)[1]]), x="f N,C"),
    operation("fill", lambda x: tf.fill(tf.shape(x), 1.0), x="f N,C"),
    operation("outer_zeros", lambda x: tf.zeros([tf.shape(x)[0], tf.shape(x)[1], tf.shape(x)[1]]), x="f N,C"),
    operation("range", lambda x: tf.range(tf.shape(x)[1]) + tf.shape(x)[:1], x="f N,C"),
    operation("linspace", lambda x: tf.linspace(x, x + 1, 3), x="f N"),
    operation("meshgrid", lambda x, y: tf.meshgrid(x, y)[0], x="f N", y="f M"),
    operation("roll", lambda x: tf.roll(x, 1, 1), x="f N,C"),
    operation("reverse", lambda x: tf.reverse(x, [1]), x="f N,C"),
    operation("reverse_sequence", lambda x, n: tf.reverse_sequence(x, n, 1), x="f N,T,C", n="i N=1"),
    operation("sequence_mask", lambda n: tf.sequence_mask(n, 5), n="i N=2"),
    operation("space_to_depth", lambda x: tf.nn.space_to_depth(x, 2), x="f N,H,W,3", sizes={"W": 4}),
    operation("depth_to_space", lambda x: tf.nn.depth_to_space(x, 2), x="f N,H,W,4"),
    operation(
        "space_to_batch", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), x="f N,H,W,C", sizes={"W": 4}
    ),
    operation(
        "batch_to_space", lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]]), x="f N,H,W,C", sizes={"N": 4}
    ),
    operation("expand_squeeze", lambda x: tf.squeeze(x, [1]), x="f N,1,C"),
    operation("identity", lambda x: tf.identity(x), x="f N,C"),
    operation("shape_of", lambda x: tf.shape(x, tf.int64), x="f N,C"),
    operation("bitcast", lambda x: tf.bitcast(x, tf.uint8), x="f N,C"),
    operation(
        "extract_volume_patches",
        lambda x: tf.extract_volume_patches(x, [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], "VALID"),
        x="f N,D,H,W,C",
    ),
)
