"""HTTP/2 header blocks (HPACK, RFC 7541) without a dynamic table, which this client disables in its settings.

Equal blocks therefore always decode to the same headers. The decoder covers the headers that a gRPC client needs.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

# Entries of the static table (appendix A) for a response's status.
_STATUS_NAME: Final = 8
_STATUS: Final = {8: "200", 9: "204", 10: "206", 11: "304", 12: "400", 13: "404", 14: "500"}
_STATIC_ENTRIES: Final = 61

# Huffman codes (appendix B) are canonical: ordered by length, then by symbol. Among unprintable symbols, only NUL has a
# code before a printable symbol.
_SYMBOLS: Final = {
    5: "012aceiost",
    6: " %-./3456789=A_bdfghlmnpru",
    7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: "&*,;XZ",
    10: '!"()?',
    11: "'+|",
    12: "#>",
    13: "\0$@[]~",
    14: "^}",
    15: "<`{",
    19: "\\",
}
_LONGEST: Final = max(_SYMBOLS)


class BadHeaderBlock(ValueError):
    """Error for a block that is invalid, or refers to a missing table entry."""


def _codes() -> dict[tuple[int, int], str]:
    codes: dict[tuple[int, int], str] = {}
    code = 0
    for length in range(1, _LONGEST + 1):
        code <<= 1
        for symbol in _SYMBOLS.get(length, ""):
            codes[length, code] = symbol
            code += 1
    return codes


_CODES: Final = _codes()


def encode(headers: Mapping[str, str]) -> bytes:
    """Encode headers as uncompressed literals without indexing."""
    block = bytearray()
    for name, value in headers.items():
        block.append(0)
        for text in (name.encode(), value.encode()):
            block += _integer(len(text), 7) + text
    return bytes(block)


@lru_cache(10_000)  # blocks of responses differ only in a date and a duration
def decode(block: bytes) -> dict[str, str]:
    """Decode headers by name, without those whose name is in the static table, except `:status`.

    Equal blocks share the result, so the caller must not change it. Raises BadHeaderBlock.
    """
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _read_integer(block, at, 7)
                _check(index)
                if index in _STATUS:
                    headers[":status"] = _STATUS[index]
            elif first & 0xE0 == 0x20:  # a dynamic table size update, to 0
                _, at = _read_integer(block, at, 5)
            else:
                index, at = _read_integer(block, at, 6 if first & 0x40 else 4)
                name = ":status" if index == _STATUS_NAME else ""
                if index:
                    _check(index)
                else:
                    name, at = _read_text(block, at)
                value, at = _read_text(block, at)
                if name:
                    headers[name] = value
    except IndexError:
        raise BadHeaderBlock("a header block is truncated") from None
    return headers


def _check(index: int) -> None:
    if not 0 < index <= _STATIC_ENTRIES:
        raise BadHeaderBlock(f"a header block refers to entry {index} of a table of {_STATIC_ENTRIES}")


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    encoded = bytearray([most])
    value -= most
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    is_huffman = block[at] & 0x80
    length, at = _read_integer(block, at, 7)
    text = block[at : at + length]
    if len(text) < length:
        raise IndexError
    return (_huffman(text) if is_huffman else text.decode("latin-1")), at + length


def _huffman(text: bytes) -> str:
    """Decode Huffman-coded text up to the first unprintable symbol, which gRPC headers never contain."""
    symbols = []
    length = code = 0
    for bit in "".join(f"{byte:08b}" for byte in text):
        length, code = length + 1, code << 1 | (bit == "1")
        symbol = _CODES.get((length, code))
        if symbol is not None:
            symbols.append(symbol)
            length = code = 0
        elif length > _LONGEST:
            break
    return "".join(symbols)
