"""Run a file of a TensorFlow Serving checkout as `bazel test` runs it: `unmodified.py CHECKOUT FILE ARGUMENT…`.

The installed `tensorflow_serving` package has the generated messages, the checkout has the tests: the two are one
package here. The checkout stays as it is.
"""

import runpy
import sys
from pathlib import Path

import tensorflow_serving


def main() -> None:
    """Run the file as `__main__`, with the arguments that follow it."""
    checkout, file, *arguments = sys.argv[1:]
    # Last: the checkout has `apis` and `config` without the generated messages of the installed package.
    tensorflow_serving.__path__.append(str(Path(checkout, "tensorflow_serving")))
    sys.argv = [file, *arguments]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main()
