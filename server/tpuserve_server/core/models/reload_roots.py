"""ReloadRoots: decides which base paths and request logs a client's reload may name."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument, PermissionDenied
from tpuserve_server.core.terms.options import ReloadOptions
from tpuserve_server.core.terms.storage import FILE_SCHEME, is_uri

logger = logging.getLogger(__name__)

# Segments of a URI that some stores resolve and others do not.
_UNCLEAR: Final = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory with links resolved, or a URI: its scheme, which is "" for a directory, and its segments."""

    scheme: str
    segments: tuple[str, ...]

    def contains(self, other: "_Place") -> bool:
        return self.scheme == other.scheme and other.segments[: len(self.segments)] == self.segments

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(self.segments)}" if self.scheme else str(Path(*self.segments))


class ReloadRoots:
    """Paths that the operator allows: the flags' paths, and the directories of paths in the operator's configurations.

    A path that the operator wrote stays allowed as written, wherever its links lead. ConfiguredModels calls all
    methods under its lock. They resolve links, so they may block on a disk.
    """

    def __init__(self, options: ReloadOptions, *, base_root: str | None = None, log_prefix: str | None = None) -> None:
        """`base_root` is a directory of models, and `log_prefix` the server's own request log."""
        self._model_roots = {_place(root) for root in options.model_roots}
        self._log_roots = {_place(root) for root in options.log_roots}
        self._adds_model_roots = not options.model_roots
        self._adds_log_roots = not options.log_roots
        self._base_paths: set[str] = set()
        self._prefixes: set[str] = set()
        if base_root and self._adds_model_roots:
            self._model_roots |= _proper(_place(base_root))
        self._add_prefixes([log_prefix] if log_prefix else [])

    def trust(self, configs: Sequence[ModelConfig]) -> None:
        """Allow the paths of a configuration that the operator wrote, and those beside them."""
        base_paths = {config.base_path for config in configs if config.ensemble is None} - self._base_paths
        self._base_paths |= base_paths
        if self._adds_model_roots:
            for base_path in base_paths:
                self._model_roots |= _parent(base_path)
        self._add_prefixes(config.logging.filename_prefix for config in configs if config.logging is not None)

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Check the paths of a client's configuration.

        Raises:
            InvalidArgument: a log's prefix is relative.
            PermissionDenied: a path is outside the roots. The message has no path that the client did not send.
        """
        for config in configs:
            if config.ensemble is None:
                self._check_base_path(config)
            if config.logging is not None and config.logging.filename_prefix:
                self._check_prefix(config.name, config.logging.filename_prefix)

    def _check_base_path(self, config: ModelConfig) -> None:
        path = config.base_path
        if path in self._base_paths or _is_within(path, self._model_roots):
            return
        _log_refusal("base path", path, self._model_roots)
        raise PermissionDenied(
            f"Model {config.name}: a reload may not use base path {path}. It may use base paths of the server's own "
            "configuration, directories beside them, and those in --reload_roots, after resolving links. The server's "
            "log lists them"
        )

    def _check_prefix(self, model: str, prefix: str) -> None:
        if prefix in self._prefixes:
            return
        if not prefix.startswith("/"):
            raise InvalidArgument(f"Model {model}: filename_prefix must be an absolute path in a reload; was {prefix}")
        if _is_within(os.path.dirname(prefix), self._log_roots):
            return
        _log_refusal("filename_prefix", prefix, self._log_roots)
        raise PermissionDenied(
            f"Model {model}: a reload may not log requests to {prefix}. It may log to the directories of request logs "
            "in the server's own configuration, and to those in --reload_log_roots, after resolving links. The "
            "server's log lists them"
        )

    def _add_prefixes(self, prefixes: Iterable[str]) -> None:
        new = set(prefixes) - self._prefixes
        self._prefixes |= new
        if self._adds_log_roots:
            for prefix in new:
                self._log_roots |= _proper(_place(os.path.dirname(os.path.abspath(prefix))))


def _place(path: str) -> _Place:
    """Return the place of a path. Resolves links of a directory, which does not need to exist."""
    if is_uri(path):
        scheme, _, rest = path.partition("://")
        return _Place(scheme, tuple(rest.rstrip("/").split("/")) if rest.strip("/") else ())
    return _Place("", Path(os.path.realpath(path.removeprefix(FILE_SCHEME))).parts)


def _is_within(path: str, roots: Iterable[_Place]) -> bool:
    if not is_uri(path) and not path.removeprefix(FILE_SCHEME).startswith("/"):
        # file:// with a relative path, which depends on the server's working directory.
        return False
    place = _place(path)
    if place.scheme and (not place.segments or not _UNCLEAR.isdisjoint(map(unquote, place.segments))):
        return False
    return any(root.contains(place) for root in roots)


def _parent(path: str) -> set[_Place]:
    """Return the directory of a base path. The directory of a path such as /model would be the whole machine."""
    if is_uri(path):
        place = _place(path)
        return {_Place(place.scheme, place.segments[:-1] or place.segments)} if place.segments else set()
    return _proper(_place(str(Path(path.removeprefix(FILE_SCHEME)).parent)))


def _proper(place: _Place) -> set[_Place]:
    return set() if place.segments in ((), ("/",)) else {place}


def _log_refusal(what: str, path: str, roots: Iterable[_Place]) -> None:
    allowed = ", ".join(sorted(map(str, roots))) or "none"
    logger.warning("Refused a reload with %s %r. Allowed directories: %s", what, path, allowed)
