"""A user's own signature: images for ResNet50 and VGG16, with BGR channels and a subtracted mean."""

import tensorflow as tf


def serve(call, inputs):
    ((name, spec),) = inputs.items()

    def run(image_bytes):
        return call(**{name: tf.map_fn(read, image_bytes, fn_output_signature=tf.float32)})

    def read(file):
        picture = tf.io.decode_image(file, channels=3, expand_animations=False)
        resized = tf.image.resize(picture, spec.shape[1:3])
        return resized[..., ::-1] - [103.939, 116.779, 123.68]

    return run, {"image_bytes": tf.TensorSpec([None], tf.string)}
