"""Merges builds of one resource into a template of Helm: what differs between the builds becomes conditional.

A build has the features that it was made with. A part that only some builds have gets the simplest condition on
features that is true for these builds, and false for the others. `deploy.helm.chart` has the features and the builds.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final, TypeAlias

Features: TypeAlias = frozenset[str]
Node: TypeAlias = Any  # YAML data
_END: Final = "{{- end }}"
# Fields that identify an item of a list, in this order; and those of lists with these names.
_KEYS: Final = ("name", "mountPath", "topologyKey", "key")
_KEYS_OF: Final = {"endpoints": ("port",), "metrics": ("type",), "triggers": ("type",)}
# Texts that YAML reads as other types.
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Build:
    """One value of a part of a resource, in the build with these features."""

    features: Features
    value: Node


@dataclass(frozen=True, slots=True)
class Places:
    """Parts that values of the chart replace or extend, by their path.

    `replace` returns the template of a scalar, or None to keep it. `extend` returns lines to add at the end of a list
    or an object, for the indentation of its items.
    """

    replace: Callable[[str, Node], str | None]
    extend: Callable[[str, int], Sequence[str]]


class Merger:
    """Writes templates from builds. `conditions` has the expression of each feature, such as `.Values.tpu.enabled`."""

    def __init__(self, conditions: Mapping[str, str], places: Places) -> None:
        self._conditions = conditions
        self._places = places

    def template(self, path: str, builds: Sequence[Build], universe: Sequence[Features]) -> str:
        """Return the template of a resource that some builds of the universe have. `path` begins with its kind.

        Raises:
            ValueError: no condition on at most two features explains a difference between the builds.
        """
        lines = list(self._object(path, builds, 0))
        wrapped = list(self._wrapped(lines, universe, [build.features for build in builds], path))
        return "\n".join(_joined(wrapped)) + "\n"

    def _object(self, path: str, builds: Sequence[Build], indent: int) -> Iterator[str]:
        """Yield the fields of an object. Those that all builds have come first, and before them the equal scalars."""
        keys = list(dict.fromkeys(key for build in builds for key in build.value))
        keys.sort(key=lambda key: len({json.dumps(build.value.get(key)) for build in builds}) > 1)
        keys.sort(key=lambda key: sum(key not in build.value for build in builds))
        for key in keys:
            having = [Build(build.features, build.value[key]) for build in builds if key in build.value]
            lines = list(self._field(f"{path}.{key}", key, having, indent))
            yield from self._wrapped(lines, *_features(builds, having), path)
        yield from self._places.extend(path, indent)

    def _field(self, path: str, key: str, builds: Sequence[Build], indent: int) -> Iterator[str]:
        name = f"{' ' * indent}{_scalar(key)}:"
        values = [build.value for build in builds]
        if all(isinstance(value, dict) and value for value in values):
            yield name
            yield from self._object(path, builds, indent + 2)
        elif all(isinstance(value, list) and value for value in values):
            yield name
            yield from self._list(path, builds, indent)
        else:
            yield from self._choice(path, name, builds)

    def _choice(self, path: str, name: str, builds: Sequence[Build]) -> Iterator[str]:
        """Yield a scalar, or one for each of its values, the most frequent one last."""
        groups: dict[str, list[Build]] = {}
        for build in builds:
            text = self._places.replace(path, build.value) or _scalar(build.value)
            groups.setdefault(text, []).append(build)
        *special, (usual, _) = sorted(groups.items(), key=lambda item: len(item[1]))
        for index, (text, having) in enumerate(special):
            yield f"{{{{- {'else if' if index else 'if'} {self._condition(*_features(builds, having), path)} }}}}"
            yield f"{name} {text}"
        if special:
            yield "{{- else }}"
        yield f"{name} {usual}"
        if special:
            yield _END

    def _list(self, path: str, builds: Sequence[Build], indent: int) -> Iterator[str]:
        order: list[str] = []
        for build in builds:
            _merge_order(order, [_identity(path, item) for item in build.value])
        for identity in order:
            having = [
                Build(build.features, item)
                for build in builds
                for item in build.value
                if _identity(path, item) == identity
            ]
            lines = list(self._item(f"{path}[{identity}]", having, indent))
            yield from self._wrapped(lines, *_features(builds, having), path)
        yield from self._places.extend(path, indent)

    def _item(self, path: str, builds: Sequence[Build], indent: int) -> Iterator[str]:
        if isinstance(builds[0].value, dict):
            first, *others = self._object(path, builds, indent + 2)
            yield f"{' ' * indent}- {first.lstrip()}"
            yield from others
        else:
            yield f"{' ' * indent}- {self._places.replace(path, builds[0].value) or _scalar(builds[0].value)}"

    def _wrapped(
        self, lines: list[str], universe: Sequence[Features], having: Sequence[Features], path: str
    ) -> Iterator[str]:
        condition = self._condition(universe, having, path)
        yield from lines if condition is None else (f"{{{{- if {condition} }}}}", *lines, _END)

    def _condition(self, universe: Sequence[Features], having: Sequence[Features], path: str) -> str | None:
        """Return the simplest expression that is true for the builds `having` alone, or None if they are all builds."""
        wanted = [features in having for features in universe]
        if all(wanted):
            return None
        literals = list(product(self._conditions, (True, False)))
        for name, is_on in literals:
            if [(name in features) is is_on for features in universe] == wanted:
                return self._literal(name, is_on)
        for (one, is_one), (two, is_two) in combinations(literals, 2):
            for word, decide in (("and", all), ("or", any)):
                if [decide(((one in each) is is_one, (two in each) is is_two)) for each in universe] == wanted:
                    return f"{word} {_nested(self._literal(one, is_one))} {_nested(self._literal(two, is_two))}"
        raise ValueError(f"{path}: no condition explains the builds {[sorted(each) for each in having]}")

    def _literal(self, name: str, is_on: bool) -> str:
        condition = self._conditions[name]
        return condition if is_on else f"not {_nested(condition)}"


def _joined(lines: Sequence[str]) -> list[str]:
    """Return the lines with consecutive blocks of the same condition as one block."""
    joined: list[str] = []
    opened: list[str] = []
    closed: str | None = None
    for line in lines:
        if line == closed and joined[-1] == _END:
            joined.pop()
            opened.append(line)
        else:
            joined.append(line)
            if line.startswith(("{{- if ", "{{- with ", "{{- range ")):
                opened.append(line)
            elif line == "{{- else }}":
                opened[-1] = line  # a block with two branches stays as it is
        closed = opened.pop() if line == _END else None
    return joined


def _features(universe: Sequence[Build], having: Sequence[Build]) -> tuple[list[Features], list[Features]]:
    return [build.features for build in universe], [build.features for build in having]


def _nested(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def _identity(path: str, item: Node) -> str:
    """Return what identifies an item among those of the list at `path`: a name, or the item itself."""
    if isinstance(item, dict):
        keys = _KEYS_OF.get(path.rpartition(".")[2], _KEYS)
        return next((str(item[key]) for key in keys if key in item), json.dumps(item, sort_keys=True))
    return str(item)


def _merge_order(order: list[str], others: Sequence[str]) -> None:
    """Add the missing items to `order`, each after the item that precedes it in `others`."""
    place = 0
    for item in others:
        if item in order:
            place = order.index(item) + 1
        else:
            order.insert(place, item)
            place += 1


def _scalar(value: Node) -> str:
    """Return a scalar or an empty collection as YAML: texts in quotes unless they are plain words."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z./-]*", value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
