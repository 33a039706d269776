"""Symbol tables of native libraries (64-bit little-endian ELF).

Only debuggers and profilers read `.symtab` and `.debug_*`. TensorFlow's wheel has 280 MB of them, and jaxlib's 110 MB.
binutils' `strip` is not in the base image, and damages some libraries that auditwheel has edited.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Offsets and formats: the System V ABI, chapter 4 (Elf64_Ehdr, Elf64_Phdr, Elf64_Shdr).
_MAGIC = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMTAB = 2
_NOBITS = 8
_ALLOC = 2


@dataclass(frozen=True, slots=True)
class _Section:
    """A section header. `link` is the number of a related section."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int

    def at(self, offset: int) -> bytes:
        return _SECTION.pack(
            self.name, self.type, self.flags, self.address, offset,
            self.size, self.link, self.info, self.align, self.entry_size,
        )  # fmt: skip


def remove_symbols(path: Path) -> int:
    """Remove the symbol table and debugging sections of a library. Return the number of bytes saved.

    What the loader maps stays as it is, at the same offsets. A file of another format, without symbols, or with symbols
    inside a segment stays unchanged. The file is replaced, because hard links may share its content with a cache.
    """
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
        if not start.startswith(_MAGIC) or len(start) < _HEADER.size:
            return 0
        header = list(_HEADER.unpack(start))
        sections = [_Section(*fields) for fields in _table(file.fileno(), _SECTION, header[6], header[12])]
        segments = list(_table(file.fileno(), _SEGMENT, header[5], header[10]))
        end = max([header[5] + header[10] * _SEGMENT.size, *(segment[2] + segment[5] for segment in segments)])
        dropped = _dropped(file.fileno(), sections, header[13])
        if not dropped or any(sections[each].offset < end for each in dropped):
            return 0
        before = path.stat()
        content = _rewritten(file.fileno(), header, sections, dropped, end)
        _replace(path, before.st_mode, content)
    return before.st_size - path.stat().st_size


def _table(file: int, record: struct.Struct, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    return record.iter_unpack(os.pread(file, record.size * count, offset))


def _dropped(file: int, sections: list[_Section], names: int) -> set[int]:
    """Return the numbers of the sections to drop, or none if a section that stays refers to one of them."""
    text = os.pread(file, sections[names].size, sections[names].offset) if sections else b""
    tables = {number for number, each in enumerate(sections) if each.type == _SYMTAB and not each.flags & _ALLOC}
    debug = {
        number
        for number, each in enumerate(sections)
        if text.startswith((b".debug_", b".zdebug_", b".gdb_index"), each.name) and not each.flags & _ALLOC
    }
    dropped = tables | debug | {sections[number].link for number in tables} - {0, names}
    kept = [each for number, each in enumerate(sections) if number not in dropped]
    return set() if any(each.link in dropped for each in kept) else dropped


def _rewritten(file: int, header: list[int], sections: list[_Section], dropped: set[int], end: int) -> Iterator[bytes]:
    """Yield the new file: everything up to `end`, the other sections that stay, and the section headers."""
    tail = bytearray()
    table = bytearray()
    for number, each in enumerate(sections):
        if number in dropped:
            # An empty header instead of none, because other headers contain numbers of headers.
            table += bytes(_SECTION.size)
        elif each.offset < end or each.type == _NOBITS:
            table += each.at(each.offset)
        else:
            tail += bytes(-(end + len(tail)) % max(each.align, 1))
            table += each.at(end + len(tail))
            tail += os.pread(file, each.size, each.offset)
    tail += bytes(-(end + len(tail)) % 8)
    header[6] = end + len(tail)
    yield _HEADER.pack(*header)
    yield from _pieces(file, _HEADER.size, end)
    yield bytes(tail)
    yield bytes(table)


def _pieces(file: int, offset: int, end: int) -> Iterator[bytes]:
    while offset < end:
        piece = os.pread(file, min(1 << 24, end - offset), offset)
        offset += len(piece)
        yield piece


def _replace(path: Path, mode: int, content: Iterator[bytes]) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.writelines(content)
    new.chmod(mode & 0o7777)
    new.replace(path)
