"""Calls of a user's function in evaluation mode: with inputs by keyword, in order, or in one dictionary."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tpuserve_exporter.errors import OptionConflict

# Common names of arguments that switch a model to evaluation mode.
_EVALUATION: Mapping[str, bool] = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
# Functions of Haiku's `transform` take this random key before their inputs. None disables randomness.
_RANDOM = "rng"


@dataclass(frozen=True, slots=True)
class CallShape:
    """The way to call a function. `switches` are keyword arguments that put it into evaluation mode."""

    how: Literal["by keyword", "in order", "as a dictionary"]
    switches: Mapping[str, bool | None]

    @classmethod
    def of(cls, function: Callable[..., Any], names: Mapping[str, object], skip: int) -> "CallShape":
        """Choose how to call a function with `skip` arguments before its inputs.

        Raises OptionConflict if the inputs do not fit its parameters.
        """
        try:
            parameters = list(inspect.signature(function).parameters.values())[skip:]
        except (TypeError, ValueError):  # a callable written in C, such as numpy's own
            return cls("in order", {})
        switches: dict[str, bool | None] = {
            one.name: _EVALUATION[one.name] for one in parameters if one.name in _EVALUATION.keys() - names.keys()
        }
        if any(one.name == _RANDOM and one.default is one.empty for one in parameters) and _RANDOM not in names:
            switches[_RANDOM] = None
        taken = [one for one in parameters if one.name not in switches and one.kind is not one.VAR_POSITIONAL]
        keywords = {one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        anything = any(one.kind is one.VAR_KEYWORD for one in taken)
        needed = [one for one in taken if one.kind is not one.VAR_KEYWORD and one.default is one.empty]
        if (names.keys() <= keywords or anything) and {one.name for one in needed} <= names.keys():
            return cls("by keyword", switches)
        positional = [one for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if len(needed) <= len(names) <= len(positional):
            return cls("in order", switches)
        if len(needed) == 1:
            return cls("as a dictionary", switches)
        raise OptionConflict(
            f"the model takes {', '.join(one.name for one in taken) or 'nothing'}, but --input names {', '.join(names)}"
        )

    def call(self, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the user's
        """Call `function` without the skipped arguments."""
        if self.how == "by keyword":
            return function(**inputs, **self.switches)
        if self.how == "in order":
            return function(*inputs.values(), **self.switches)
        return function(dict(inputs), **self.switches)
