"""Packed varints (protobuf's wire form of integers) to numpy, a whole array at a time."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Octets: TypeAlias = npt.NDArray[np.uint8]

# A 64-bit value takes at most ten groups of seven bits (protobuf.dev/programming-guides/encoding).
MAX_OCTETS = 10


def decode_varints(raw: bytes) -> npt.NDArray[np.uint64]:
    """The values packed in `raw`, as their 64 bits each (a negative int32 comes sign-extended). ValueError if cut."""
    octets = np.frombuffer(raw, np.uint8)
    is_last = octets < 0x80
    if is_last.all():  # every value below 128: booleans, labels, small counts
        return octets.astype(np.uint64)
    ends = np.flatnonzero(is_last)
    if not is_last[-1]:
        raise ValueError("packed varints end in the middle of a value")
    starts = np.concatenate(([0], ends[:-1] + 1))
    return _join_groups(octets, starts, ends - starts + 1)


def _join_groups(octets: Octets, starts: npt.NDArray[np.intp], lengths: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest > MAX_OCTETS:
        raise ValueError(f"a varint of {longest} bytes")
    groups = octets & np.uint8(0x7F)
    values = groups[starts].astype(np.uint64)
    for index in range(1, longest):  # one pass over the values for each seven bits, picking rows only where it must
        shift = np.uint64(7 * index)
        if index < shortest:
            values |= groups[starts + index].astype(np.uint64) << shift
        else:
            rows = np.flatnonzero(lengths > index)
            values[rows] |= groups[starts[rows] + index].astype(np.uint64) << shift
    return values


def split_strings(raw: bytes, count: int) -> list[bytes]:
    """`count` strings written as all their lengths (varints), then all their bytes. ValueError if they do not fit.

    That is how TensorFlow puts strings in `tensor_content` (tsl/platform/tensor_coding, EncodeStringList).
    """
    head = np.flatnonzero(np.frombuffer(raw, np.uint8) < 0x80)[:count]
    if len(head) < count:
        raise ValueError(f"{count} strings expected, {len(head)} lengths found")
    start = int(head[-1]) + 1 if count else 0
    ends = start + np.cumsum(decode_varints(raw[:start]).astype(np.int64))
    if (int(ends[-1]) if count else 0) != len(raw):
        raise ValueError(f"{count} strings do not fill {len(raw)} bytes")
    return [raw[begin:end] for begin, end in zip([start, *ends[:-1]], ends, strict=True)] if count else []
