"""Messages for operators about a base path that holds no version."""

import posixpath

from tpuserve_server.core.terms.storage import parse_version


def describe_without_version(base_path: str, *, exists: bool, file: str) -> str:
    """Describe a base path without a version directory. `file` is the result of `Storage.find_version_file`."""
    if not exists:
        return f"base path {base_path} does not exist or is not a directory"
    if file:
        return describe_version_as_base(base_path, file)
    return f"base path {base_path} contains no version directory such as 1/"


def describe_version_as_base(base_path: str, file: str) -> str:
    """Describe a base path that is itself a version because it holds `file`, and name the directory to use instead."""
    folder = base_path.rstrip("/")
    parent, name = posixpath.split(folder)
    if parse_version(name) is None:
        return (
            f"base path {base_path} contains {file} itself, and no version directory. Move its files into a directory "
            f"whose name is a whole number, such as {folder}/1"
        )
    return (
        f"base path {base_path} is itself version {name}: it contains {file}. Use its parent directory: "
        f'--model_base_path={parent}, or base_path: "{parent}" in a model configuration'
    )
