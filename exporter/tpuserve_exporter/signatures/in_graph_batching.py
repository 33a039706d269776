"""`--batching in-graph`: a graph that batches rows of concurrent calls, for servers that do not batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.export_options import InGraphBatching
from tpuserve_exporter.signatures.served_signature import Call, DevicePart

if TYPE_CHECKING:
    import tensorflow as tf


def batch_calls(device: DevicePart, batching: InGraphBatching, batch_sizes: Sequence[int]) -> Call:
    """Return a function that calls the device part in batches padded to `batch_sizes`. It splits longer requests.

    The batched function is still the device part, with its alias. Raises OptionConflict for a model whose rows cannot
    be joined with those of another call.
    """
    import tensorflow as tf

    signature = device.signature
    if signature.is_ragged:
        raise OptionConflict(
            f"--batching in-graph joins rows, but row splits cannot be joined ({signature}). Omit --batching"
        )
    if not signature.is_batchable:
        raise OptionConflict(
            f"--batching in-graph needs rows, but not every input and output has rows ({signature}). Omit --batching"
        )
    if any(spec.free_axes for spec in signature.inputs.values()):
        raise OptionConflict(
            "--batching in-graph joins calls along their rows, so that all other dimensions need a fixed size "
            f"({signature}). Set their sizes with --input NAME:DTYPE[batch,SIZE]"
        )

    @tf.nondifferentiable_batch_function(  # type: ignore[untyped-decorator]  # TensorFlow is untyped
        num_batch_threads=batching.threads,
        # The limit for one call, which is the queue's capacity. The operation splits it into allowed batch sizes.
        max_batch_size=max(batch_sizes) * batching.queue,
        batch_timeout_micros=batching.timeout_us,
        allowed_batch_sizes=sorted(batch_sizes),
        max_enqueued_batches=batching.queue,
        autograph=False,
        enable_large_batch_splitting=True,
    )
    def run(*inputs: "tf.Tensor") -> "list[tf.Tensor]":
        outputs = device.call(**dict(zip(device.inputs, inputs, strict=True)))
        return [outputs[name] for name in device.outputs]

    def call(**inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        outputs = run(*(inputs[name] for name in device.inputs))
        # The operation loses the shapes of its outputs.
        specs = device.outputs.items()
        return {name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(specs, outputs, strict=True)}

    return call
