"""Inputs of a model of transformers: their names, dtypes and shapes by its configuration, and its longest sequence."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tpuserve_exporter.models.jax_function import JaxInput

# Tokenizers return int64.
_TOKENS = "int64"
_PREPROCESSOR = "preprocessor_config.json"


def known_inputs(model: Any, directory: Path) -> dict[str, JaxInput]:  # noqa: ANN401 - a model of transformers, here
    """Return the inputs that a client sends to the model, or none if its configuration does not show them.

    Sequences are free in length. Images have the size of the configuration, or of the image processor in `directory`.
    """
    main = model.main_input_name
    known: dict[str, JaxInput] = {}
    if main == "input_ids":
        known |= _text(model)
    if main == "pixel_values" or _reads_images_too(model):
        known |= _images(model, directory)
    if main == "input_features":
        known |= _spectrogram(model)
    if main == "input_values":
        known |= _sound(model)
    if known and model.config.is_encoder_decoder and "decoder_input_ids" in parameters_of(model):
        known["decoder_input_ids"] = JaxInput(_TOKENS, ("batch", "decoder_length"))
    return known


def parameters_of(model: Any) -> Mapping[str, inspect.Parameter]:  # noqa: ANN401
    return inspect.signature(model.forward).parameters


def _text(model: Any) -> dict[str, JaxInput]:  # noqa: ANN401
    parameters, tokens = parameters_of(model), JaxInput(_TOKENS, ("batch", "length"))
    names = ["input_ids"]
    if "attention_mask" in parameters:
        names.append("attention_mask")
    # Models with one type of tokens, such as RoBERTa, have the parameter without use.
    if "token_type_ids" in parameters and getattr(model.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    return dict.fromkeys(names, tokens)


def _reads_images_too(model: Any) -> bool:  # noqa: ANN401
    """Return whether the model compares texts with images, as CLIP does."""
    config = model.config
    return "pixel_values" in parameters_of(model) and hasattr(config, "vision_config") and not model.can_generate()


def _images(model: Any, directory: Path) -> dict[str, JaxInput]:  # noqa: ANN401
    config = getattr(model.config, "vision_config", model.config)
    size = _pair(getattr(config, "image_size", None)) or _processed_size(directory)
    channels = getattr(config, "num_channels", 3)
    return {} if size is None else {"pixel_values": JaxInput("float32", ("batch", channels, *size))}


def _processed_size(directory: Path) -> tuple[int, int] | None:
    """Return the height and width of the image processor's output, if they are fixed."""
    try:
        processor = json.loads((directory / _PREPROCESSOR).read_bytes())
    except (OSError, ValueError):
        return None
    sizes = [processor.get(key) for key in ("crop_size", "size")] if isinstance(processor, dict) else []
    return next((pair for size in sizes if (pair := _pair(size))), None)


def _pair(size: object) -> tuple[int, int] | None:
    """Read `224`, `[224, 224]` or `{"height": 224, "width": 224}`."""
    match size:
        case int():
            return size, size
        case [int(height), int(width)] | {"height": int(height), "width": int(width)}:
            return height, width
    return None


def _spectrogram(model: Any) -> dict[str, JaxInput]:  # noqa: ANN401
    """Return the input of Whisper, whose encoder halves the number of frames."""
    config = model.config
    if not hasattr(config, "num_mel_bins") or not hasattr(config, "max_source_positions"):
        return {}
    return {"input_features": JaxInput("float32", ("batch", config.num_mel_bins, 2 * config.max_source_positions))}


def _sound(model: Any) -> dict[str, JaxInput]:  # noqa: ANN401
    """Return a spectrogram of a fixed length. The number of samples that Wav2Vec2 takes is the user's choice."""
    config = model.config
    if not hasattr(config, "num_mel_bins") or not hasattr(config, "max_length"):
        return {}
    return {"input_values": JaxInput("float32", ("batch", config.max_length, config.num_mel_bins))}


def longest_sequence(model: Any) -> int | None:  # noqa: ANN401
    """Return the longest sequence of tokens that the model can take, or None if it has no limit."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if model.main_input_name != "input_ids" or not isinstance(longest, int) or longest < 1:
        return None
    # RoBERTa's positions begin after its padding token, whose row of the table counts as a position.
    begins = [
        one.padding_idx + 1
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Embedding) and name.endswith("position_embeddings") and one.padding_idx is not None
    ]
    return longest - max(begins, default=0)
