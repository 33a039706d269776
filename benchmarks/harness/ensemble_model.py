"""The MLP as an ensemble of two steps: `clip`, which limits its inputs to [0, 1], and `dense`, the MLP itself.

The benchmark's inputs are in this range, so the ensemble answers what the MLP answers. Writing needs TensorFlow and
runs in a separate process (`ensemble_model.py BASE`).
"""

import sys
from pathlib import Path

from benchmarks.harness import mlp_model
from benchmarks.harness.function_model import write_function
from benchmarks.harness.model_config import config_entry, config_list

CLIP = "clip"
_TENSOR = "clipped"


def write_clip(base: Path) -> Path:
    """Write version 1 of the first step below `base` and return its directory. Imports TensorFlow."""
    return write_function(base, (mlp_model.FEATURES,), lambda tf, x: tf.clip_by_value(x, 0.0, 1.0))


def configuration(name: str, clip_base: Path, mlp_base: Path) -> str:
    """Return a model configuration file with both steps, and the ensemble as `name`."""
    ensemble = f"""config {{
  name: "{name}" model_platform: "ensemble"
  ensemble_scheduling {{
    {_step(CLIP, mlp_model.INPUT, _TENSOR)}
    {_step("dense", _TENSOR, mlp_model.OUTPUT)}
  }}
}}"""
    return config_list(config_entry(CLIP, clip_base), config_entry("dense", mlp_base), ensemble)


def _step(model: str, tensor: str, result: str) -> str:
    return (
        f'step {{ model_name: "{model}" input_map {{ key: "{mlp_model.INPUT}" value: "{tensor}" }} '
        f'output_map {{ key: "{mlp_model.OUTPUT}" value: "{result}" }} }}'
    )


if __name__ == "__main__":
    print(write_clip(Path(sys.argv[1])))
