"""Operations on texts and images."""

import struct
import zlib
from typing import Final

import tensorflow as tf
from tensorflow.core.example import example_pb2
from tensorflow.core.framework import tensor_pb2

from tests.zoo.catalogue.operation import Operation, operation


def _png() -> bytes:
    """Return an image of 1 x 1 pixels."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0abc")),
        (b"IEND", b""),
    )
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


PNG: Final = _png()
TENSOR: Final = tensor_pb2.TensorProto(dtype=1, float_val=[1.5]).SerializeToString()
EXAMPLE: Final = example_pb2.Example().SerializeToString()

MEDIA: Final[tuple[Operation, ...]] = (
    operation("string_split", lambda x: tf.strings.split(x).to_tensor(), x="s N"),
    operation("string_split_ragged", lambda x: tf.strings.split(x).row_splits, x="s N,T"),
    operation("regex_replace", lambda x: tf.strings.regex_replace(x, "a", "b"), x="s N,T"),
    operation("to_number", lambda x: tf.strings.to_number(x), x="s N,T=1.5"),
    operation("as_string", lambda x: tf.strings.as_string(x), x="f N,C"),
    operation("string_join", lambda x, y: tf.strings.join([x, y], "-"), x="s N", y="s N"),
    operation("reduce_join", lambda x: tf.strings.reduce_join(x, -1), x="s N,T"),
    operation("substr", lambda x: tf.strings.substr(x, 0, 2), x="s N,T"),
    operation("string_length", lambda x: tf.strings.length(x), x="s N,T"),
    operation("text_lengths", lambda x: tf.reduce_sum(tf.strings.length(x)), x="s N,T"),
    operation("string_lower", lambda x: tf.strings.lower(x), x="s N,T"),
    operation("hash_bucket", lambda x: tf.strings.to_hash_bucket_fast(x, 100), x="s N,T"),
    operation("string_ngrams", lambda x: tf.strings.ngrams(tf.strings.split(x), 2).to_tensor(), x="s N"),
    operation("unicode_decode", lambda x: tf.strings.unicode_decode(x, "UTF-8").to_tensor(), x="s N"),
    operation("encode_base64", lambda x: tf.io.encode_base64(x), x="s N,T"),
    operation("decode_base64", lambda x: tf.io.decode_base64(x), x="s N,T=YWI"),
    operation("decode_raw", lambda x: tf.io.decode_raw(x, tf.uint8), x="s N"),
    operation("decode_csv", lambda x: tf.io.decode_csv(x, [[0.0], [0.0]])[1], x="s N=1.5,2"),
    operation("parse_tensor", lambda x: tf.io.parse_tensor(x, tf.float32), x="s ", values={"x": TENSOR}),
    operation(
        "parse_example",
        lambda x: tf.io.parse_example(x, {"x": tf.io.FixedLenFeature([1], tf.float32, [0.0])})["x"],
        x="s N",
        values={"x": EXAMPLE},
    ),
    operation(
        "edit_distance",
        lambda x, y: tf.edit_distance(tf.sparse.from_dense(x), tf.sparse.from_dense(y), False),
        x="l N,T",
        y="l N,T",
    ),
    operation(
        "decode_png", lambda x: tf.map_fn(lambda one: tf.io.decode_png(one, 3), x, tf.uint8), x="s N", values={"x": PNG}
    ),
    operation("decode_image", lambda x: tf.io.decode_image(x, 3), x="s ", values={"x": PNG}),
    operation("resize_bilinear", lambda x: tf.image.resize(x, [4, 4]), x="f N,H,W,C"),
    operation("resize_nearest", lambda x: tf.image.resize(x, [4, 4], "nearest"), x="f N,H,W,C"),
    operation("resize_bicubic", lambda x: tf.compat.v1.image.resize_bicubic(x, [4, 4]), x="f N,H,W,C"),
    operation("resize_area", lambda x: tf.compat.v1.image.resize_area(x, [4, 4]), x="f N,H,W,C"),
    operation("resize_double", lambda x: tf.compat.v1.image.resize_bilinear(x, tf.shape(x)[1:3] * 2), x="f N,H,W,C"),
    operation("resize_scaled", lambda x: tf.image.resize(x, [4, 4], "lanczos3"), x="f N,H,W,C"),
    operation(
        "crop_and_resize",
        lambda x, b: tf.image.crop_and_resize(x, b, tf.zeros(tf.shape(b)[:1], tf.int32), [2, 2]),
        x="f N,H,W,C",
        b="f B,4",
    ),
    operation("adjust_contrast", lambda x: tf.image.adjust_contrast(x, 2.0), x="f N,H,W,3"),
    operation("adjust_hue", lambda x: tf.image.adjust_hue(x, 0.2), x="f N,H,W,3"),
    operation("adjust_saturation", lambda x: tf.image.adjust_saturation(x, 0.2), x="f N,H,W,3"),
    operation("rgb_to_hsv", lambda x: tf.image.rgb_to_hsv(x), x="f N,H,W,3"),
    operation(
        "extract_patches",
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"),
        x="f N,H,W,C",
    ),
    operation(
        "extract_glimpse", lambda x: tf.image.extract_glimpse(x, [2, 2], tf.zeros([2, 2]), noise="zero"), x="f N,H,W,C"
    ),
    operation("encode_png", lambda x: tf.io.encode_base64(tf.map_fn(tf.io.encode_png, x, tf.string)), x="u N,H,W,3"),
    operation(
        "draw_boxes", lambda x, b: tf.image.draw_bounding_boxes(x, b, [[1.0, 0.0, 0.0]]), x="f N,H,W,3", b="f N,B,4"
    ),
    operation(
        "projective",
        lambda x: tf.raw_ops.ImageProjectiveTransformV2(
            images=x, transforms=[[1.0, 0, 0, 0, 1, 0, 0, 0]], output_shape=[3, 3], interpolation="BILINEAR"
        ),
        x="f N,H,W,C",
    ),
    operation("non_max_suppression", lambda b, s: tf.image.non_max_suppression(b, s, 3), b="f B,4", s="f B"),
    operation(
        "combined_nms", lambda b, s: tf.image.combined_non_max_suppression(b, s, 2, 2)[1], b="f N,B,1,4", s="f N,B,C"
    ),
)
