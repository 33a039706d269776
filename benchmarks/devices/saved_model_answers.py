"""What TensorFlow says: a version's SavedModel, loaded and asked by TensorFlow alone, in a process of its own.

`saved_model_answers.py VERSION_DIR REQUESTS ANSWERS` reads a pickled list of requests, each arrays by
name, and writes the list of answers likewise.
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
    answered = [
        {
            output: tensor.numpy()
            for output, tensor in signature(**{name: tf.constant(value) for name, value in request.items()}).items()
        }
        for request in pickle.loads(requests.read_bytes())
    ]
    answers.write_bytes(pickle.dumps(answered))


if __name__ == "__main__":
    main()
