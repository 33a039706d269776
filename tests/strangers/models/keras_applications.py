"""Image classifiers of keras.applications with weights that differ from the initial ones, like after training."""

import keras
import numpy as np
import tensorflow as tf

from tests.strangers.models import photos

CLASSES = 10
# Builder of each family, and the module with its preprocess_input.
FAMILIES = {
    "MobileNet": (keras.applications.MobileNet, keras.applications.mobilenet),
    "MobileNetV2": (keras.applications.MobileNetV2, keras.applications.mobilenet_v2),
    "MobileNetV3Small": (keras.applications.MobileNetV3Small, keras.applications.mobilenet_v3),
    "EfficientNetB0": (keras.applications.EfficientNetB0, keras.applications.efficientnet),
    "EfficientNetV2B0": (keras.applications.EfficientNetV2B0, keras.applications.efficientnet_v2),
    "ConvNeXtTiny": (keras.applications.ConvNeXtTiny, keras.applications.convnext),
    "DenseNet121": (keras.applications.DenseNet121, keras.applications.densenet),
    "ResNet50": (keras.applications.ResNet50, keras.applications.resnet),
    "ResNet50V2": (keras.applications.ResNet50V2, keras.applications.resnet_v2),
    "VGG16": (keras.applications.VGG16, keras.applications.vgg16),
    "InceptionV3": (keras.applications.InceptionV3, keras.applications.inception_v3),
    "Xception": (keras.applications.Xception, keras.applications.xception),
}


def build(family, size=32, **options):
    make, _ = FAMILIES[family]
    return make(weights=None, input_shape=(size, size, 3), classes=CLASSES, **options)


def save(folder, family, size=32, settled=True, **options):
    """Save model.keras, model.h5 and checkpoints/ckpt-1 of one model, and return its outputs."""
    keras.utils.set_random_seed(7)
    model = build(family, size, **options)
    _, module = FAMILIES[family]
    train(model, module.preprocess_input(photos.draw(16, size, size, seed=1).astype(np.float32)), settled)
    model.save(folder / "model.keras")
    model.save(folder / "model.h5")
    tf.train.Checkpoint(model=model).save(str(folder / "checkpoints" / "ckpt"))

    def ask(pixels):
        """Predict pixels from 0 to 255 like a user's own script."""
        return model.predict(module.preprocess_input(pixels.copy()), verbose=0)

    pictures = photos.draw(4, size, size, seed=2)
    larger = photos.draw(2, size + 16, size + 7, seed=3)
    pngs = np.concatenate([photos.encode(pictures[:2], "PNG"), photos.encode(larger, "PNG")])
    jpegs = photos.encode(photos.draw_mosaics(4, size, size, seed=4), "JPEG", quality=95, subsampling=0)
    inputs, output = model.inputs[0].name, model.output_names[0]
    inputs = "inputs" if inputs.startswith("keras_tensor") else inputs
    tensors = module.preprocess_input(pictures.astype(np.float32))
    return {
        "serving_default": [({inputs: tensors}, {output: model.predict(tensors, verbose=0)})],
        "photo": [({"image_bytes": pngs}, {output: ask(photos.read(pngs, size, size))})],
        "photo:jpeg": [({"image_bytes": jpegs}, {output: ask(photos.read(jpegs, size, size))})],
    }


def train(model, images, settled):
    """Change every weight of a new model, so that outputs differ and no class is certain.

    With `settled`, batch norms get the moving statistics of `images`. In EfficientNetV2B0, these would let the last bit
    of another image's pixels change the class. Its norms therefore keep statistics near the initial ones.
    """
    generator = np.random.default_rng(11)
    for weight in model.trainable_weights:
        if len(weight.shape) == 1:
            drawn = generator.normal(0, 0.2, weight.shape)
            weight.assign(np.asarray(weight) + drawn if np.any(np.asarray(weight) > 0.5) else drawn)
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    if settled:
        model(images, training=True)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
        norm.moving_mean.assign_add(generator.normal(0, 0.1, norm.moving_mean.shape) * np.sqrt(norm.moving_variance))
        norm.moving_variance.assign(norm.moving_variance * np.exp(generator.normal(0, 0.2, norm.moving_mean.shape)))
    scores = [layer for layer in model.layers if layer.weights][-1]
    kernel, bias = scores.get_weights()
    features = np.asarray(keras.Model(model.inputs, scores.input)(images, training=False)).reshape(len(images), -1)
    logits = features @ kernel.reshape(-1, CLASSES) + bias
    factor = 1.5 / logits.std(0).mean()
    scores.set_weights([kernel * factor, (bias - logits.mean(0)) * factor + generator.normal(0, 0.5, CLASSES)])
    answers = model.predict(images, verbose=0)
    assert answers.max() < 0.99999, answers.max()
    assert answers.std(0).mean() > 0.03, answers.std(0)
