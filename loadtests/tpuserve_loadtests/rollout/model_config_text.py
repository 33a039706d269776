"""Text of a model_config_file, with changes to version labels that preserve all other text."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from google.protobuf import text_format
from google.protobuf.text_encoding import CUnescape

from tpuserve_formats.messages.model_server_config import ModelServerConfig, configuration_sha256

# A comment, or a token in the group. Only text that protobuf has already parsed is split, so white space is the rest.
_TOKEN: Final = re.compile(
    r"""\#[^\n]*|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[{}<>\[\]:,;]|[^\s{}<>\[\]:,;"'#]+)""",
)
_CLOSING: Final = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field from `start` to `end` of the text, with its value from `value_start`.

    The value is `scalar` or the `fields` of a message. A field with `in_list` is an element of a list in brackets, and
    cannot be removed alone.
    """

    name: str
    start: int
    value_start: int
    end: int
    scalar: str = ""
    fields: tuple["Field", ...] = ()
    in_list: bool = False

    def find(self, name: str) -> "list[Field]":
        return [field for field in self.fields if field.name == name]


class _Token(NamedTuple):
    text: str
    start: int
    end: int


def _read_fields(text: str) -> list[Field]:
    tokens = deque(_Token(found[1], *found.span(1)) for found in _TOKEN.finditer(text) if found[1])
    return _fields(tokens, "")


def _fields(tokens: deque[_Token], closing: str) -> list[Field]:
    """Take the fields of a message, without its `closing` token."""
    found: list[Field] = []
    while tokens and tokens[0].text != closing:
        name, start, _ = tokens.popleft()
        if name in (",", ";"):
            continue
        while name[0] == "[" and name[-1] != "]":  # an extension or an Any
            name += tokens.popleft().text
        if tokens[0].text == ":":
            tokens.popleft()
        if tokens[0].text != "[":
            found.append(_value(tokens, name, start, in_list=False))
            continue
        while tokens.popleft().text != "]":  # the bracket, or a comma between values
            if tokens[0].text != "]":
                found.append(_value(tokens, name, start, in_list=True))
    return found


def _value(tokens: deque[_Token], name: str, start: int, *, in_list: bool) -> Field:
    token, value_start, end = tokens.popleft()
    if token in _CLOSING:
        fields = tuple(_fields(tokens, _CLOSING[token]))
        return Field(name, start, value_start, tokens.popleft().end, fields=fields, in_list=in_list)
    scalar = _unquoted(token)
    while token[0] in "\"'" and tokens and tokens[0].text[0] in "\"'":  # adjacent strings are concatenated
        more, _, end = tokens.popleft()
        scalar += _unquoted(more)
    return Field(name, start, value_start, end, scalar=scalar, in_list=in_list)


def _unquoted(token: str) -> str:
    return CUnescape(token[1:-1]).decode() if token[0] in "\"'" else token


class BadConfig(ValueError):
    """Error for an invalid ModelServerConfig, or one whose labels cannot be changed. The message states the reason."""


class ModelConfigText:
    """A ModelServerConfig as text, with `message` as its parsed form."""

    def __init__(self, text: str) -> None:
        """Parse the text. Raises BadConfig, with line and column, for invalid text and for unknown fields."""
        self.text = text
        try:
            self.message = text_format.Parse(text, ModelServerConfig())
        except text_format.ParseError as error:
            raise BadConfig(f"not a ModelServerConfig: {error}") from None
        if self.message.HasField("custom_model_config"):
            raise BadConfig("expected model_config_list, received custom_model_config, which has no labels")
        names = [model.name for model in self.message.model_config_list.config]
        if not names:
            raise BadConfig("the file contains no model; expected model_config_list { config { name: … } }")
        if len(set(names)) < len(names):
            raise BadConfig(f"the file contains a model twice: {sorted(names)}")

    @property
    def sha256(self) -> str:
        """The hash that a server reports when it has applied this configuration."""
        return configuration_sha256(self.message)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.message.model_config_list.config)

    def labels(self, model: str) -> dict[str, int]:
        """Return the versions of a model's labels. Raises BadConfig for an unknown model."""
        for config in self.message.model_config_list.config:
            if config.name == model:
                return dict(config.version_labels)
        raise BadConfig(f"the file does not contain model {model}; its models are {', '.join(self.models)}")

    def with_labels(self, model: str, changes: Mapping[str, int | None]) -> Self:
        """Return the text with labels of one model moved to other versions, added, or removed (None).

        All other text is unchanged. Raises BadConfig if the text's format does not permit the change.
        """
        self.labels(model)
        text = self.text
        for label, version in changes.items():
            text = _changed(text, model, label, version)
        changed = type(self)(text)
        self._check(changed, model, changes)
        return changed

    def _check(self, changed: Self, model: str, changes: Mapping[str, int | None]) -> None:
        """Check with protobuf that only the labels changed. Raises BadConfig."""
        wanted = ModelServerConfig.FromString(self.message.SerializeToString())
        for config in wanted.model_config_list.config:
            if config.name == model:
                for label, version in changes.items():
                    if version is None:
                        config.version_labels.pop(label, None)
                    else:
                        config.version_labels[label] = version
        if wanted != changed.message:
            raise BadConfig(f"the format of the file does not permit a change of only the labels of {model}")


def _changed(text: str, model: str, label: str, version: int | None) -> str:
    config = _find_config(text, model)
    found = [field for field in config.find("version_labels") if _key(field) == label]
    if not found:
        if version is None:
            return text
        return _inserted(text, config, f"version_labels {{ key: {_quoted(label)} value: {version} }}")
    last = found[-1]  # in protobuf, the last value of a field applies
    if version is None:
        if last.in_list:
            raise BadConfig(f"cannot remove label {label} of {model}, because it is an element of a list")
        return _without(text, last)
    values = last.find("value")
    if not values:
        return _inserted(text, last, f"value: {version}")
    return text[: values[-1].value_start] + str(version) + text[values[-1].end :]


def _find_config(text: str, model: str) -> Field:
    for models in _read_fields(text):
        for config in models.find("config"):
            if any(name.scalar == model for name in config.find("name")):
                return config
    raise BadConfig(f"the file does not contain model {model}")


def _key(field: Field) -> str:
    keys = field.find("key")
    return keys[-1].scalar if keys else ""


def _inserted(text: str, message: Field, field: str) -> str:
    closing = message.end - 1
    line_start = text.rfind("\n", 0, closing) + 1
    if text[line_start:closing].strip() or not message.fields:
        return f"{text[:closing]}{field} {text[closing:]}"
    neighbour = message.fields[-1].start
    indent = text[text.rfind("\n", 0, neighbour) + 1 : neighbour]
    return f"{text[:line_start]}{indent if not indent.strip() else ''}{field}\n{text[line_start:]}"


def _without(text: str, field: Field) -> str:
    """Remove a field, with its line if the line is otherwise empty."""
    line_start = text.rfind("\n", 0, field.start) + 1
    line_end = text.find("\n", field.end) + 1
    if line_end and not (text[line_start : field.start] + text[field.end : line_end]).strip():
        return text[:line_start] + text[line_end:]
    return text[: field.start].rstrip(" \t") + text[field.end :]


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
