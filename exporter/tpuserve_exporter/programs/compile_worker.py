"""A compiler process. It reads a job from each line of standard input and writes an outcome to each line of output.

libtpu may end its process without an error, and writes to standard output. Separate processes keep it apart from the
exporter, and outcomes go to a duplicate of the original standard output.
"""

import os
import sys


def prepare_environment() -> None:
    """Set the environment for libtpu on any machine, without a TPU, metadata server or exclusive lock."""
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TPU_STDERR_LOG_LEVEL="3",
        TPU_MIN_LOG_LEVEL="3",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    os.environ.pop("LIBTPU_INIT_ARGS", None)


def main() -> None:
    prepare_environment()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import jax

    # Programs from TensorFlow may have 64-bit dtypes.
    jax.config.update("jax_enable_x64", True)
    from tpuserve_exporter.programs.compile_job import CompileJob
    from tpuserve_exporter.programs.compiler import compile_program

    for line in sys.stdin:
        print(compile_program(CompileJob.from_line(line)).to_line(), file=answers, flush=True)


if __name__ == "__main__":
    main()
