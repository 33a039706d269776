"""Paths of a tree's leaves as keys, as names, and as names of TensorFlow variables, with conversions and inverses.

Matching uses keys. Reports, manifests, safetensors files and options such as --rename use names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from tpuserve_exporter.errors import BuilderFailed, reason_of

# Keys from the root: dictionary keys, sequence indices and attribute names.
KeyPath: TypeAlias = tuple[str, ...]
# The name of the leaf of a tree that is a single array.
_ROOT = "params"
# A name that safetensors reserves.
_RESERVED = "__metadata__"
# Names of TensorFlow operations start with a letter, digit or dot. This matches the characters that they cannot have.
_NOT_IN_VARIABLES = re.compile(r"[^A-Za-z0-9_./-]|(?<=/)/|/$")
_ESCAPED = re.compile(r"(?:>[0-9A-F]{2})+")


def flatten(tree: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - any tree
    """List every leaf with its path from jax.tree_util. Raises BuilderFailed if a leaf has no unique path."""
    import jax

    try:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
    except Exception as error:  # a registered class's own code, or keys that JAX cannot sort
        raise BuilderFailed(f"JAX cannot flatten the tree of parameters: {reason_of(error)}") from error
    counted = Counter(keys_of(path) for path, _ in leaves)
    if double := [jax.tree_util.keystr(path) for path, _ in leaves if counted[keys_of(path)] > 1]:
        raise BuilderFailed(
            f"several leaves of the tree have the same path: {' and '.join(double)}. Use different keys"
        )
    return list(leaves)


def keys_of(path: Iterable[Any]) -> KeyPath:
    """Convert a path from jax.tree_util to keys."""
    return tuple(map(_key, path))


def _key(key: Any) -> str:  # noqa: ANN401 - one of jax.tree_util's kinds of key
    found = next((getattr(key, one) for one in ("key", "idx", "name") if hasattr(key, one)), key)
    # JSON cannot encode lone surrogates.
    return str(found).encode("utf-8", "backslashreplace").decode()


class TreeNames:
    """Unique names of one tree's leaves: the keys joined by `/`.

    If two leaves would share a name (`a/b` and `a: {b}`), `/` and `%` in keys are percent-encoded as in URLs.
    """

    def __init__(self, paths: Iterable[KeyPath]) -> None:
        paths = list(paths)
        joined = Counter(map("/".join, paths))
        self._escapes = len(joined) < len(paths) or _RESERVED in joined
        self._paths: Mapping[str, KeyPath] = {self.name(path): path for path in paths}

    def name(self, path: KeyPath) -> str:
        return "/".join(map(_escape_key, path) if self._escapes else path) or _ROOT

    def path(self, name: str) -> KeyPath:
        """Return the keys of a leaf. For an unknown name, return the keys that would produce it."""
        if name in self._paths:
            return self._paths[name]
        keys = (key for key in name.split("/") if key)
        return tuple(map(unquote, keys) if self._escapes else keys)


def _escape_key(key: str) -> str:
    if key == _RESERVED:
        return key.replace("_", "%5F", 1)
    return key.replace("%", "%25").replace("/", "%2F")


def split_keys(path: KeyPath) -> KeyPath:
    """Split every key at its slashes: `mlp/~/linear_0` of Haiku becomes three keys."""
    return tuple(part for key in path for part in key.split("/"))


def variable_name(name: str) -> str:
    """Convert a leaf's name to a valid name of a TensorFlow variable.

    Invalid characters become `>7E`, their bytes in hexadecimal. A dot precedes a name with an invalid first character.
    """
    escaped = _NOT_IN_VARIABLES.sub(lambda match: "".join(f">{byte:02X}" for byte in match[0].encode()), name)
    return escaped if escaped[:1].isalnum() else f".{escaped}"


def name_of_variable(name: str) -> str:
    """Invert `variable_name`. Other names stay unchanged."""
    bare = name.removeprefix(".")
    try:
        found = _ESCAPED.sub(lambda match: bytes.fromhex(match[0].replace(">", "")).decode(), bare)
    except UnicodeDecodeError:
        return name
    return found if variable_name(found) == name else name
