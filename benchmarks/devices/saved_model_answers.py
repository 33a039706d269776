"""Run a version's SavedModel with TensorFlow alone, in a separate process, for reference outputs.

`saved_model_answers.py VERSION_DIR REQUESTS ANSWERS` reads a pickled list of requests, each a mapping from name to
array. It writes the pickled list of outputs.
"""

import os
import pickle
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf


def main() -> None:
    version, requests, answers = map(Path, sys.argv[1:])
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    outputs = [
        {
            output: tensor.numpy()
            for output, tensor in signature(**{name: tf.constant(value) for name, value in request.items()}).items()
        }
        for request in pickle.loads(requests.read_bytes())
    ]
    answers.write_bytes(pickle.dumps(outputs))


if __name__ == "__main__":
    main()
