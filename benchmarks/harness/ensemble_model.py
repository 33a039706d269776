"""The MLP as an ensemble of two steps: `clip`, which limits its inputs to [0, 1], and `dense`, the MLP itself.

The benchmark's inputs are in this range, so the ensemble answers what the MLP answers. Writing needs TensorFlow and
runs in a separate process (`ensemble_model.py BASE`).
"""

import os
import sys
from pathlib import Path

from benchmarks.harness import mlp_model

CLIP = "clip"
_TENSOR = "clipped"


def write_clip(base: Path) -> Path:
    """Write version 1 of the first step below `base` and return its directory. Imports TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    module = tf.Module()
    spec = tf.TensorSpec((None, mlp_model.FEATURES), tf.float32, name=mlp_model.INPUT)
    module.clip = tf.function(lambda x: {mlp_model.OUTPUT: tf.clip_by_value(x, 0.0, 1.0)}, input_signature=[spec])
    version = base / str(mlp_model.VERSION)
    tf.saved_model.save(module, str(version), signatures={mlp_model.SIGNATURE: module.clip})
    mlp_model.write_manifest(version, (mlp_model.SIGNATURE,))
    return version


def configuration(name: str, clip_base: Path, mlp_base: Path) -> str:
    """Return a model configuration file with both steps, and the ensemble as `name`."""
    models = "\n".join(
        f'config {{ name: "{step}" base_path: "{base}" model_platform: "tensorflow" }}'
        for step, base in ((CLIP, clip_base), ("dense", mlp_base))
    )
    return f"""model_config_list {{
{models}
config {{
  name: "{name}" model_platform: "ensemble"
  ensemble_scheduling {{
    {_step(CLIP, mlp_model.INPUT, _TENSOR)}
    {_step("dense", _TENSOR, mlp_model.OUTPUT)}
  }}
}}
}}
"""


def _step(model: str, tensor: str, result: str) -> str:
    return (
        f'step {{ model_name: "{model}" input_map {{ key: "{mlp_model.INPUT}" value: "{tensor}" }} '
        f'output_map {{ key: "{mlp_model.OUTPUT}" value: "{result}" }} }}'
    )


if __name__ == "__main__":
    print(write_clip(Path(sys.argv[1])))
