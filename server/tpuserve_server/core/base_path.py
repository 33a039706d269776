"""A base path that is itself a version: TensorFlow Serving waits there for ever, for folders that never come."""

import posixpath

from tpuserve_server.core.storage import parse_version


def describe_version_as_base(base_path: str, file: str) -> str:
    """What is wrong with a base path that holds `file`, a part of a model, and what to give instead; for operators."""
    folder = base_path.rstrip("/")
    parent, name = posixpath.split(folder)
    if parse_version(name) is None:
        return (
            f"base path {base_path} holds {file} itself, and no version folder. Move its files into a folder whose "
            f"name is a whole number, such as {folder}/1"
        )
    return (
        f"base path {base_path} is itself version {name}: it holds {file}. Give the folder above it: "
        f'--model_base_path={parent}, or base_path: "{parent}" in a model configuration'
    )
