"""A compiler's process: jobs in by lines of standard input, answers out by lines of what standard output was.

libtpu can end a process without a word, and writes where it likes: nothing else lives here.
"""

import os
import sys


def prepare_environment() -> None:
    """For libtpu on any machine: it looks for no TPU, asks no metadata server, and shares its lock."""
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

    # Programs that came from TensorFlow may have 64 bits.
    jax.config.update("jax_enable_x64", True)
    from tpuserve_exporter.preflight.compile_job import CompileJob
    from tpuserve_exporter.preflight.compiler import compile_program

    for line in sys.stdin:
        print(compile_program(CompileJob.from_line(line)).to_line(), file=answers, flush=True)


if __name__ == "__main__":
    main()
