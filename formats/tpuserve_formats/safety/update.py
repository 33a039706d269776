"""Add the operations of the installed TensorFlow to `operations.txt`: `python -m tpuserve_formats.safety.update`.

New operations go under "is not reviewed", and models that need them are refused until a person moves them to a kind.
Operations that only older versions of TensorFlow have stay in the file.
"""

import ctypes
import importlib
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from tpuserve_formats.messages.fields import field_contents
from tpuserve_formats.safety.operations import OPERATIONS_FILE, read_classification

NOT_REVIEWED = "is not reviewed"
# Field numbers of OpList and OpDef (tensorflow/core/framework/op_def.proto).
_OP, _NAME = 1, 1


class _Buffer(ctypes.Structure):
    """TF_Buffer (tensorflow/c/tf_buffer.h)."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("deallocator", ctypes.c_void_p))


def registered_operations() -> frozenset[str]:
    """Return the name of every operation of the installed TensorFlow, with those that Python does not show."""
    module = importlib.import_module("tensorflow")
    [library, *_] = sorted(Path(str(module.__file__)).parent.glob("libtensorflow_cc.*"))
    list_all = ctypes.CDLL(str(library)).TF_GetAllOpList
    list_all.restype = ctypes.POINTER(_Buffer)
    buffer = list_all().contents
    operations = memoryview(ctypes.string_at(buffer.data, buffer.length))
    return frozenset(
        bytes(name).decode() for one in field_contents(operations, _OP) for name in field_contents(one, _NAME)
    )


def with_new(text: str, operations: Collection[str]) -> str:
    """Return the text of `operations.txt` with the operations that it lacks, as not reviewed."""
    kinds = read_classification(text)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    added = dict.fromkeys(sorted(set(operations) - kinds.keys()), NOT_REVIEWED)
    return "\n".join([*comments, *_sections({**kinds, **added}), ""])


def _sections(kinds: Mapping[str, str]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(kinds.values()):
        lines += ["", f"[{kind}]", *sorted(name for name, its in kinds.items() if its == kind)]
    return lines


def main() -> None:
    """Write the file again."""
    text = OPERATIONS_FILE.read_text(encoding="utf-8")
    OPERATIONS_FILE.write_text(with_new(text, registered_operations()), encoding="utf-8")
    sys.stdout.write(f"wrote {OPERATIONS_FILE}\n")


if __name__ == "__main__":
    main()
