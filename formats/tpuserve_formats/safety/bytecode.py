"""Reader of MLIR bytecode (mlir.llvm.org/docs/BytecodeFormat), as far as the check of StableHLO programs needs it.

StableHLO programs are stored in the dialect `vhlo`. Only their strings, operation names, attributes and properties are
read. From version 5 of the format, an operation has its attributes as properties; before, it has them as a dictionary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tpuserve_formats.errors import FormatError

MAGIC: Final = b"ML\xefR"
_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS, _PROPERTIES = 0, 1, 2, 3, 8
_HAS_ALIGNMENT = 0x80
# Bytecode versions with a section of versions for each dialect, and with a count and a flag for operation names.
_VERSIONED_DIALECTS, _COUNTED_OPERATIONS, _REGISTERED_OPERATIONS = 1, 4, 5
# Codes of attributes in the builtin dialect (mlir/include/mlir/IR/BuiltinDialectBytecode.td).
_DICTIONARY = 1
# Codes of attributes in StableHLO's dialect (stablehlo/dialect/VhloBytecode.cpp). Only custom calls have the first.
_CUSTOM_CALL_API, _DICTIONARY_OF_COMPOSITE, _TEXT = 5, 6, 14
# Place of the target's name in the properties of a custom call, which are in alphabetical order.
_TARGET_PLACE, _TARGET = 2, "call_target_name"
_MOST_COUNT = 1 << 32
# The dialects of stored programs: MLIR's, StableHLO's, and Shardy's for programs on a mesh.
_DIALECTS_OF_PROGRAMS: Final = frozenset({"builtin", "sdy", "vhlo"})


class Cursor:
    """A position in bytes, which reads the format's numbers."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise FormatError("the program is truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        """Read a number whose first byte has as many zeros at its low end as further bytes follow."""
        first = self.take(1)[0]
        if first == 0:
            return int.from_bytes(self.take(8), "little")
        further = (first & -first).bit_length() - 1
        value = int.from_bytes(bytes([first]) + self.take(further), "little") >> (further + 1)
        if value > _MOST_COUNT:
            raise FormatError("a number in the program is too large")
        return value


@dataclass(frozen=True, slots=True)
class _Attribute:
    """One attribute: its dialect and content. `is_text` is True for the form of MLIR's text."""

    dialect: str
    is_text: bool
    content: bytes


@dataclass(frozen=True, slots=True)
class Bytecode:
    """The strings of a module, its operations as `dialect.name`, and its attributes."""

    strings: tuple[str, ...]
    operations: frozenset[str]
    attributes: tuple[_Attribute, ...]
    properties: tuple[bytes, ...]

    @classmethod
    def read(cls, data: bytes) -> "Bytecode":
        """Read a module.

        Raises:
            FormatError: damaged bytes, an unknown version of the format, another dialect, or attributes as text, which
                may be attributes of any dialect.
        """
        version, sections = _read_sections(data)
        strings = tuple(_read_strings(Cursor(sections[_STRINGS])))
        dialects, operations = _read_dialects(Cursor(sections[_DIALECTS]), version, strings)
        attributes = tuple(_read_attributes(Cursor(sections[_OFFSETS]), sections[_ATTRIBUTES], dialects))
        if foreign := sorted(set(dialects) - _DIALECTS_OF_PROGRAMS):
            raise FormatError(f"the program has the dialect {foreign[0]}")
        if any(one.is_text for one in attributes):
            raise FormatError("the program has attributes as text")
        properties = _read_properties(Cursor(sections.get(_PROPERTIES, b"")))
        return cls(strings, operations, attributes, tuple(properties))

    def custom_calls(self) -> Iterator[str]:
        """Yield the target of each custom call.

        Raises:
            FormatError: an attribute that could belong to a custom call has another form.
        """
        for attribute in self.attributes:
            cursor = Cursor(attribute.content)
            if attribute.dialect == "builtin" and cursor.number() == _DICTIONARY:
                for _ in range(cursor.number()):
                    name, value = self._string(cursor.number()), cursor.number()
                    if name == _TARGET:
                        yield self._string(value)
        for properties in self.properties:
            indexes = _read_indexes(Cursor(properties))
            codes = [self._code(index) for index in indexes]
            # StableHLO also accepts a number for the first attribute. A composite has a dictionary there, and its name
            # instead of the target.
            if len(codes) > _TARGET_PLACE and codes[_TARGET_PLACE] == _TEXT and codes[0] != _DICTIONARY_OF_COMPOSITE:
                yield self._string(indexes[_TARGET_PLACE])
            elif codes and codes[0] == _CUSTOM_CALL_API:
                raise FormatError("the program has a custom call in an unknown form")

    def _code(self, index: int) -> int:
        """Return the code of an attribute of StableHLO, or -1."""
        if index >= len(self.attributes) or self.attributes[index].dialect != "vhlo":
            return -1
        return Cursor(self.attributes[index].content).number()

    def _string(self, index: int) -> str:
        """Return the string in an attribute. StableHLO's strings have the same form as those of the builtin dialect."""
        try:
            cursor = Cursor(self.attributes[index].content)
            cursor.number()
            return self.strings[cursor.number()]
        except IndexError as error:
            raise FormatError("the program refers to a missing string") from error


def _read_sections(data: bytes) -> tuple[int, Mapping[int, bytes]]:
    cursor = Cursor(data)
    if cursor.take(len(MAGIC)) != MAGIC:
        raise FormatError("the program is not MLIR bytecode")
    version = cursor.number()
    end = data.find(b"\0", cursor.at)
    cursor.at = end + 1 if end >= 0 else len(data)
    sections: dict[int, bytes] = {}
    while cursor.at < len(data):
        identity = cursor.take(1)[0]
        length = cursor.number()
        if identity & _HAS_ALIGNMENT:
            cursor.at += -cursor.at % max(1, cursor.number())
        if identity & ~_HAS_ALIGNMENT in sections:
            raise FormatError("the program has a section twice")
        sections[identity & ~_HAS_ALIGNMENT] = cursor.take(length)
    if missing := {_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS} - sections.keys():
        raise FormatError(f"the program lacks section {min(missing)}")
    return version, sections


def _read_strings(cursor: Cursor) -> list[str]:
    """Read the strings. Their lengths come first, in reverse order, and include a final NUL."""
    lengths = [cursor.number() for _ in range(cursor.number())]
    return [cursor.take(length)[:-1].decode(errors="replace") for length in reversed(lengths)]


def _read_dialects(cursor: Cursor, version: int, strings: tuple[str, ...]) -> tuple[list[str], frozenset[str]]:
    dialects = []
    for _ in range(cursor.number()):
        name = cursor.number()
        if version >= _VERSIONED_DIALECTS:
            if name & 1:
                cursor.take(1)
                cursor.take(cursor.number())
            name >>= 1
        dialects.append(_at(strings, name))
    if version >= _COUNTED_OPERATIONS:
        cursor.number()
    operations = set[str]()
    while cursor.at < len(cursor.data):
        dialect = _at(dialects, cursor.number())
        for _ in range(cursor.number()):
            name = cursor.number()
            operations.add(f"{dialect}.{_at(strings, name >> 1 if version >= _REGISTERED_OPERATIONS else name)}")
    return dialects, frozenset(operations)


def _read_attributes(cursor: Cursor, contents: bytes, dialects: list[str]) -> Iterator[_Attribute]:
    count, source = cursor.number(), Cursor(contents)
    cursor.number()
    while count > 0:
        dialect = _at(dialects, cursor.number())
        for _ in range(cursor.number()):
            entry = cursor.number()
            yield _Attribute(dialect, not entry & 1, source.take(entry >> 1))
            count -= 1


def _read_properties(cursor: Cursor) -> Iterator[bytes]:
    """Yield the properties of the operations. Equal ones are stored once."""
    for _ in range(cursor.number() if cursor.data else 0):
        yield cursor.take(cursor.number())


def _read_indexes(cursor: Cursor) -> list[int]:
    """Read indexes of attributes up to the target's place, or until other data follows."""
    indexes: list[int] = []
    try:
        while cursor.at < len(cursor.data) and len(indexes) <= _TARGET_PLACE:
            indexes.append(cursor.number())
    except FormatError:
        pass
    return indexes


def _at(names: "list[str] | tuple[str, ...]", index: int) -> str:
    if index >= len(names):
        raise FormatError("the program refers to a missing name")
    return names[index]
