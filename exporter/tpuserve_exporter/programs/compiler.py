"""A compiler process: it compiles device programs for a TPU topology by libtpu through JAX, without a TPU.

The process reads a job from each line of standard input and writes an outcome to each line of output. libtpu may end
its process without an error, and writes to standard output. Separate processes keep it apart from the exporter, and
outcomes go to a duplicate of the original standard output.
"""

import dataclasses
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.programs.compile_job import CompileJob, CompileOutcome
from tpuserve_exporter.programs.lowering import rewrite_module

if TYPE_CHECKING:
    from jax.sharding import Sharding


def argument_bytes(compiled: Any, avals: Sequence[Any], shardings: "Sequence[Sharding]") -> list[int]:  # noqa: ANN401 - jax's have no types
    """Return the bytes of each argument's shard on one device, in its layout, including padding.

    The compiler removes unused arguments. They have no layout, so their sizes exclude padding.
    """
    formats, _ = compiled.input_formats
    return [
        _padded_bytes(sharding.shard_shape(aval.shape), aval.dtype.itemsize, None if one is None else one.layout)
        for aval, sharding, one in zip(avals, shardings, formats, strict=True)
    ]


def _padded_bytes(shape: Sequence[int], itemsize: int, layout: Any) -> int:  # noqa: ANN401 - jax's Layout has no types
    """Return the bytes of an array in a layout. The first tiling pads the last dimensions of `major_to_minor`.

    Further tilings subdivide the first tiles and add no padding.
    """
    if layout is None or layout.tiling is None or not layout.tiling:
        return int(math.prod(shape) * itemsize)
    tile = layout.tiling[0]
    ordered = [shape[axis] for axis in layout.major_to_minor]
    # Scalars have tiles, too.
    ordered = [1] * (len(tile) - len(ordered)) + ordered
    untiled = len(ordered) - len(tile)
    tiled = [-(-size // side) * side for size, side in zip(ordered[untiled:], tile, strict=True)]
    return int(math.prod((*ordered[:untiled], *tiled)) * itemsize)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
# `… temporaries (40.00G) exceeds available HBM (15.75G)`, or `Used 18.20G of 15.75G hbm`.
_TOO_LARGE = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"[Uu]sed {_SIZE} of {_SIZE} hbm"),
)
# Statuses that the program causes. Others, such as INTERNAL and ABORTED, are failures of the compiler.
_OF_THE_PROGRAM = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "FAILED_PRECONDITION", "OUT_OF_RANGE")


def compile_program(job: CompileJob) -> CompileOutcome:
    """Compile from shapes alone, without reading weights. Blocks for seconds or minutes with large programs."""
    import jax

    started = time.monotonic()
    try:
        compiled, logical, arguments = _compile(job)
    except jax.errors.JaxRuntimeError as error:
        return read_refusal(str(error), time.monotonic() - started)
    except Exception as error:  # a damaged program, another version, or a wrong number of weights
        return CompileOutcome("unknown", f"{type(error).__name__}: {_first_line(error)}")
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return CompileOutcome(
        "compiled",
        compile_s=round(time.monotonic() - started, 3),
        argument_bytes=memory.argument_size_in_bytes,
        input_bytes=sum(arguments[: len(job.row_inputs)]),
        weight_bytes=tuple(arguments[len(job.row_inputs) :]),
        output_bytes=memory.output_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        logical_bytes=logical,
        flops=_known(cost.get("flops")),
        bytes_accessed=_known(cost.get("bytes accessed")),
    )


def read_refusal(message: str, seconds: float) -> CompileOutcome:
    """Read the compiler's error: the program is too large or refused, or the error is not about the program."""
    status, _, reason = message.partition(":")
    for pattern in _TOO_LARGE:
        if found_sizes := pattern.search(message):
            needed, available = (int(float(found_sizes[i]) * _UNITS[found_sizes[i + 1]]) for i in (1, 3))
            return CompileOutcome(
                "too large", compile_s=round(seconds, 3), needed_bytes=needed, available_bytes=available
            )
    if status == "RESOURCE_EXHAUSTED":
        return CompileOutcome("too large", _first_line(reason), round(seconds, 3))
    ending = "refused" if status in _OF_THE_PROGRAM else "unknown"
    return CompileOutcome(ending, _first_line(message), round(seconds, 3))  # type: ignore[arg-type]  # of the two


def _compile(job: CompileJob) -> tuple[Any, int, list[int]]:
    """Return the executable, and two sizes for one device in bytes.

    The first is the total of arguments and outputs without padding. The second is each argument with padding.
    """
    import jax

    program = jax.export.deserialize(bytearray(_read(job.program)))
    call, avals = program.call, program.in_avals
    if job.bfloat16:
        call, avals = in_bfloat16(program)
    shardings, returned = _shardings(job)
    shaped = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(avals, shardings, strict=True)
    ]
    compiled = jax.jit(call, out_shardings=returned).trace(*shaped).lower(lowering_platforms=("tpu",)).compile()
    arrays = zip((*avals, *program.out_avals), (*shardings, *returned), strict=True)
    logical = sum(_size(aval, sharding) for aval, sharding in arrays)
    return compiled, logical, argument_bytes(compiled, avals, shardings)


def _shardings(job: CompileJob) -> "tuple[list[Sharding], tuple[Sharding, ...]]":
    """Return the sharding of each argument and each result. A single device takes all of them whole.

    Results have the shardings that the server requests (its executors/pjrt/program.py). The compiler might shard them
    over `model`, and that program would take less memory than the server's.
    """
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    described = topologies.get_topology_desc(platform="tpu", topology_name=job.topology, **_host(job.topology))
    devices = described.devices
    if job.data * job.model == 1:
        alone: Sharding = SingleDeviceSharding(devices[0])
        return [alone] * (len(job.row_inputs) + len(job.weight_axes)), (alone,) * len(job.row_outputs)
    mesh = Mesh(np.array(devices[: job.data * job.model]).reshape(job.data, job.model), ("data", "model"))

    def cut(*axes: str | None) -> "Sharding":
        return NamedSharding(mesh, PartitionSpec(*axes))

    rows, replicated = cut("data"), cut()
    inputs = [rows if one else replicated for one in job.row_inputs]
    returned = tuple(rows if one else replicated for one in job.row_outputs)
    return [*inputs, *(cut(*axes) for axes in job.weight_axes)], returned


def _host(topology: str) -> dict[str, tuple[int, ...]]:
    """Return the chip bounds of a machine with fewer than four chips. libtpu before 0.0.51 assumes four."""
    grid = [int(size) for size in topology.partition(":")[2].split("x")]
    return {"chips_per_host_bounds": (*grid, 1)[:3]} if math.prod(grid) < 4 else {}


def _size(aval: Any, sharding: "Sharding") -> int:  # noqa: ANN401 - jax's ShapedArray has no types
    """Return the bytes of one device's shard, without padding."""
    elements: int = math.prod(sharding.shard_shape(aval.shape))
    return elements * int(aval.dtype.itemsize)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _known(value: float | None) -> float | None:
    """Return a cost, or None if the compiler does not know it. Unknown costs are absent or negative."""
    return None if value is None or value < 0 else float(value)


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]


# A program with bfloat16 instead of every float32 shows whether it would fit. The check ignores its outputs. If the
# rewritten text does not parse, the preflight reports nothing on bfloat16.
_CONSTANT = re.compile(r"dense<(?P<values>[^>]*)>(?P<type> : tensor<(?:\d+x)*f32>)")
# Hexadecimal bytes of all elements, or bits of one element. The upper half of a float32 is the bfloat16.
_BYTES = re.compile(r'"0x([0-9A-F]+)"')
_BITS = re.compile(r"0x([0-9A-F]{4})[0-9A-F]{4}\b")
_FLOAT32 = re.compile(r"(?<![\w%@.\"])f32\b|(?<=x)f32(?=[>,])")


def in_bfloat16(program: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: ANN401 - jax.export.Exported
    """Return the rewritten program as a callable, and the shapes of its arguments."""
    shapes = {"in_avals": tuple(map(_halved, program.in_avals)), "out_avals": tuple(map(_halved, program.out_avals))}
    serialized = rewrite_module(program, rewrite)
    halved = dataclasses.replace(program, mlir_module_serialized=serialized, **shapes)
    return halved.call, halved.in_avals


def rewrite(text: str) -> str:
    """Replace every float32 in a module's MLIR text by bfloat16."""
    return _FLOAT32.sub("bf16", _CONSTANT.sub(_halve_constant, text))


def _halve_constant(found: re.Match[str]) -> str:
    values = _BYTES.sub(lambda one: f'"0x{_upper_halves(one[1])}"', found["values"])
    if values == found["values"]:
        values = _BITS.sub(r"0x\1", values)
    return f"dense<{values}>{found['type']}"


def _upper_halves(digits: str) -> str:
    """Return the upper halves of little-endian float32 values in hexadecimal digits."""
    return np.frombuffer(bytes.fromhex(digits), np.uint16)[1::2].tobytes().hex().upper()


def _halved(aval: Any) -> Any:  # noqa: ANN401 - jax's ShapedArray has no types
    import jax.numpy as jnp

    return aval.update(dtype=jnp.dtype(jnp.bfloat16)) if aval.dtype == np.float32 else aval


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

    for line in sys.stdin:
        print(compile_program(CompileJob.from_line(line)).to_line(), file=answers, flush=True)


if __name__ == "__main__":
    main()
