"""Families of keras.applications, from a file and from a checkpoint, with tensors and with images."""

from tests.strangers.stranger import Export, Refusal, Stranger, Tolerance

MODELS = "tests.strangers.models.keras_applications"
# Signature options equivalent to preprocess_input of keras.applications.
TF_MODE = "scale=1/127.5,mean=1"
TORCH_MODE = "scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
BATCH_SIZES = ("--batch-sizes", "1,4")
# Deep networks with random weights amplify rounding differences of pixels. A wrong scale differs by tenths.
DEEP = Tolerance(1e-3, 1e-3)


def _family(
    name: str, photo: str, size: int = 32, settled: bool = True, h5: Refusal | None = None, **options: float
) -> Stranger:
    """Return a family's model.

    `photo` is the signature for images. `h5` is for families whose .h5 file Keras itself cannot load.
    """
    signatures = ("--signature", "serving_default=tensor", "--signature", f"photo={photo}", *BATCH_SIZES)
    arguments = {"family": name, "size": size, **options}
    builder = [part for key, value in arguments.items() for part in ("--model-arg", f"{key}={value}")]
    return Stranger(
        name,
        f"{MODELS}:save",
        (
            Export(".keras", "model.keras", signatures),
            Export(".h5", "model.h5", signatures, refusal=h5),
            Export("TF2 checkpoint", "checkpoints", ("--model", f"{MODELS}:build", *builder, *signatures)),
        ),
        arguments={**arguments, "settled": settled},
        tolerance=DEEP,
    )


STRANGERS = (
    _family("MobileNet", f"image_bytes,{TF_MODE}", alpha=0.25),
    _family("MobileNetV2", f"image_bytes,{TF_MODE}", alpha=0.35),
    # These models contain their preprocessing. Without an option, pixels stay unchanged.
    _family("MobileNetV3Small", "image_bytes", alpha=0.75, h5=Refusal(6, "cannot read model.h5", required=False)),
    _family("EfficientNetB0", "image_bytes"),
    _family("EfficientNetV2B0", "image_bytes", settled=False),
    _family("ConvNeXtTiny", "image_bytes", h5=Refusal(6, "LayerScale", required=False)),
    _family("DenseNet121", f"image_bytes,{TORCH_MODE}"),
    _family("ResNet50", "tests.strangers.models.caffe_photo:serve"),
    _family("ResNet50V2", f"image_bytes,{TF_MODE}"),
    _family("VGG16", "tests.strangers.models.caffe_photo:serve"),
    _family("InceptionV3", f"image_bytes,{TF_MODE}", size=75),
    _family("Xception", f"image_bytes,{TF_MODE}", size=71),
)
