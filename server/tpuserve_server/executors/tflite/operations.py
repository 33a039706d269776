"""Refusal of TensorFlow Lite models with unknown custom operations, or with data in other files.

LiteRT's own operations only compute. Custom ones, such as `Flex…` for TensorFlow's operations, may do anything.
"""

import struct
from collections.abc import Collection, Iterator
from typing import Final

from ai_edge_litert import schema_py_generated as schema

from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.storage import show_name

# Custom operations that LiteRT has itself (tensorflow/lite/core/kernels/register.cc). They compute.
_ALLOWED: Final = frozenset({"AudioSpectrogram", "Mfcc", "NumericVerify", "TFLite_Detection_PostProcess"})


def check_operations(content: bytes, allowed: Collection[str]) -> None:
    """Check a model before LiteRT reads it.

    Raises:
        FailedPrecondition: the model has custom operations that are not in `allowed`, or data in other files.
        InvalidArgument: the content is damaged.
    """
    try:
        model = schema.Model.GetRootAsModel(content, 0)
        custom, has_other_files = set(_custom_operations(model)), model.ExternalBufferGroupsLength() > 0
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise InvalidArgument(f"The TensorFlow Lite model is damaged: {type(error).__name__}") from error
    if has_other_files:
        raise FailedPrecondition("the TensorFlow Lite model has data in other files, which this server does not read")
    if refused := sorted(custom - _ALLOWED - set(allowed)):
        names = ",".join(map(show_name, refused))
        raise FailedPrecondition(
            f"this server refuses custom operations of the TensorFlow Lite model: {names}. Convert the model without "
            f"them. If you trust its author, allow them: --allowed_ops={names}"
        )


def _custom_operations(model: schema.Model) -> Iterator[str]:
    for index in range(model.OperatorCodesLength()):
        name = model.OperatorCodes(index).CustomCode()
        if name:
            yield name.decode(errors="replace")
