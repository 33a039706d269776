"""Regenerate the `_pb2` module of every .proto here: `python -m tpuserve_formats.messages._proto.generate`.

Needs grpcio-tools. protoc's own Python output refuses protobuf runtimes that are older than the compiler or two major
versions newer. A descriptor has no such limit, so each module contains only the descriptor.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

FOLDER = Path(__file__).resolve().parent
PACKAGE_ROOT = FOLDER.parents[2]

_HEADER = '''"""Generated from {name} by tpuserve_formats.messages._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
{imports}
DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
'''


def sources() -> list[Path]:
    """Return every .proto file in this directory."""
    return sorted(FOLDER.glob("*.proto"))


def generated(source: Path) -> dict[Path, str]:
    """Return the texts of the module made from `source` and of its .pyi, by path.

    Raises CalledProcessError if protoc refuses the file.
    """
    with tempfile.TemporaryDirectory() as scratch:
        name = source.relative_to(PACKAGE_ROOT)
        descriptor_set = Path(scratch, "file.binpb")
        # A separate process, because the C++ protobuf of protoc conflicts with tensorflow's.
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            f"--proto_path={PACKAGE_ROOT}",
            f"--descriptor_set_out={descriptor_set}",
            f"--pyi_out={scratch}",
            str(name),
        ]
        subprocess.run(command, check=True, cwd=PACKAGE_ROOT)
        [file] = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set.read_bytes()).file
        module = source.with_name(f"{source.stem}_pb2.py")
        stub = Path(scratch, name).with_name(f"{source.stem}_pb2.pyi").read_text()
        return {module: _module_text(file), module.with_suffix(".pyi"): stub}


def _module_text(file: descriptor_pb2.FileDescriptorProto) -> str:
    raw = file.SerializeToString(deterministic=True)
    lines = [f"    {raw[start : start + 64]!r}" for start in range(0, len(raw), 64)]
    messages = [
        f'{message.name} = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["{message.name}"])'
        for message in file.message_type
    ]
    return _header(file) + "\n".join([*lines, ")", "", *messages, ""])


def _header(file: descriptor_pb2.FileDescriptorProto) -> str:
    # The pool must contain the descriptors of imported files, such as google/protobuf/wrappers.proto, first.
    needed = [Path(dependency) for dependency in file.dependency]
    imports = [f"from {'.'.join(path.parent.parts)} import {path.stem}_pb2 as _{path.stem}_pb2" for path in needed]
    return _HEADER.format(name=Path(file.name).name, imports="".join(f"{line}  # noqa: F401\n" for line in imports))


def main() -> None:
    """Write every module next to its source."""
    for source in sources():
        for path, text in generated(source).items():
            path.write_text(text)
            sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
