"""Decoding of image files in TensorFlow: JPEG, PNG, BMP, GIF and WebP, converted to the model's channels.

TensorFlow's decoders support only some conversions. They refuse a GIF for a model with one channel, and a JPEG for a
model with four. The functions here ignore the EXIF orientation, like the loaders of TensorFlow, Keras and torchvision.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf

_PNG, _JPEG, _BMP, _WEBP = b"\x89PNG", b"\xff\xd8\xff", b"BM", b"WEBP"
_ANIMATED = "animated WebP is not supported: send one image as JPEG, PNG or still WebP"
# The animation flag in an extended WebP header, and byte offsets in the header.
_ANIMATION_FLAG, _FLAGS_AT, _EXTENDED, _EXTENDED_AT = 2, 20, b"VP8X", 12
# ITU-R 601-2 weights in Pillow's fixed-point arithmetic, which leaves grey pixels unchanged.
_GREY, _HALF, _ONE = (19595, 38470, 7471), 1 << 15, 1 << 16
_OPAQUE = 255


def decode_image(image: "tf.Tensor", channels: int) -> "tf.Tensor":
    """Decode a file to uint8 [height, width, channels] with 1, 3 or 4 channels. Use the first frame of an animated GIF.

    Refuse an animated WebP: TensorFlow 2.21 decodes it beyond the end of its buffer, and the process aborts.
    """
    import tensorflow as tf

    still = tf.debugging.Assert(tf.logical_not(_is_animated_webp(image)), [_ANIMATED], name="still_image")
    with tf.control_dependencies([still]):
        image = tf.identity(image)
    decode = {1: _decode_grey, 3: _decode_colour, 4: _decode_with_alpha}[channels]
    return _with_channels(decode(image), channels)


def _decode_colour(image: "tf.Tensor") -> "tf.Tensor":
    return _if(_is_webp(image), lambda: _decode(image, 0)[..., :3], lambda: _decode(image, 3), 3)


def _decode_grey(image: "tf.Tensor") -> "tf.Tensor":
    """Decode to grey. The PNG and JPEG decoders convert to grey themselves, except for a JPEG in CMYK."""
    return _if(_has_grey(image), lambda: _decode(image, 1), lambda: _to_grey(_decode_colour(image)), 1)


def _has_grey(image: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    return tf.cond(_begins(image, _JPEG), lambda: tf.io.extract_jpeg_shape(image)[2] != 4, lambda: _begins(image, _PNG))


def _decode_with_alpha(image: "tf.Tensor") -> "tf.Tensor":
    """Decode with alpha. The PNG and BMP decoders return alpha, and the WebP decoder keeps the file's channels.

    Other decoders return no alpha.
    """
    has_alpha = _begins(image, _PNG) | _begins(image, _BMP)
    return _if(has_alpha, lambda: _decode(image, 4), lambda: _add_alpha(image), 4)


def _add_alpha(image: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    decoded = _if(_is_webp(image), lambda: _decode(image, 0), lambda: _decode(image, 3), None)
    opaque = tf.fill(tf.concat([tf.shape(decoded)[:2], [1]], 0), tf.constant(_OPAQUE, tf.uint8))
    return tf.concat([decoded, opaque], -1)[..., :4]


def _to_grey(colour: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    weighted = tf.reduce_sum(tf.cast(colour, tf.int32) * tf.constant(_GREY), -1, keepdims=True)
    return tf.cast((weighted + _HALF) // _ONE, tf.uint8)


def _decode(image: "tf.Tensor", channels: int) -> "tf.Tensor":
    import tensorflow as tf

    return _with_channels(tf.io.decode_image(image, channels=channels, expand_animations=False), channels or None)


def _with_channels(image: "tf.Tensor", channels: int | None) -> "tf.Tensor":
    import tensorflow as tf

    return tf.ensure_shape(image, [None, None, channels])


def _if(
    condition: "tf.Tensor", then: "Callable[[], tf.Tensor]", otherwise: "Callable[[], tf.Tensor]", channels: int | None
) -> "tf.Tensor":
    import tensorflow as tf

    return _with_channels(tf.cond(condition, then, otherwise), channels)


def _begins(image: "tf.Tensor", start: bytes) -> "tf.Tensor":
    return _part(image, 0, len(start)) == start


def _is_webp(image: "tf.Tensor") -> "tf.Tensor":
    return _part(image, 8, len(_WEBP)) == _WEBP


def _is_animated_webp(image: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    flags = tf.io.decode_raw(tf.strings.join([_part(image, _FLAGS_AT, 1), b"\0"]), tf.uint8)[0]
    is_extended = _is_webp(image) & (_part(image, _EXTENDED_AT, len(_EXTENDED)) == _EXTENDED)
    return is_extended & (tf.bitwise.bitwise_and(flags, tf.constant(_ANIMATION_FLAG, tf.uint8)) != 0)


def _part(image: "tf.Tensor", start: int, length: int) -> "tf.Tensor":
    """Return bytes of the file, or fewer if it ends early."""
    import tensorflow as tf

    return tf.strings.substr(image, tf.minimum(start, tf.strings.length(image)), length)
