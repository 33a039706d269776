"""Next steps for errors of JAX and Flax in a model's code, whose own messages are about training."""

import re

_EVALUATION = (
    "Build the model for evaluation. The exporter sets arguments of these names alone: train, training, is_training, "
    "deterministic, use_running_average"
)
CACHE = (
    "A version keeps no state between requests. Build the model with decode=False, or return (apply_fn, params) from "
    "the builder, where apply_fn takes the cache as inputs and returns it"
)
_VALUES = (
    "The code depends on the values of an input, such as `if x.sum() > 0`. Use jnp.where or jax.lax.cond, and set "
    "arguments that are no arrays in the builder, such as functools.partial(apply_fn, layers=2)"
)
_METHOD = (
    "Return (apply_fn, params) from the builder, such as (functools.partial(module.apply, method='encode'), params)"
)
# Patterns for `NameOfTheError: its message`, in order, and the next step.
_ADVICE = (
    (r"InvalidRngError.* for \"dropout\"", _EVALUATION),
    (
        r"InvalidRngError.* for \"(?P<name>\w+)\"",
        "The model draws random numbers in each call. Return its mean, or return (lambda params, x: "
        "module.apply(params, x, rngs={'{name}': jax.random.key(0)}), params) from the builder",
    ),
    (r"ModifyScopeVariableError.* collection \"cache\"|[Aa]utoregressive cache", CACHE),
    (r"ModifyScopeVariableError", _EVALUATION),
    (r"TracerArrayConversionError", "Use jax.numpy in the model instead of numpy"),
    (r"(TracerBoolConversion|TracerIntegerConversion|ConcretizationType|NonConcreteBooleanIndex)Error", _VALUES),
    (r"is not a valid JAX array type", "Return arrays of numbers alone"),
    (r"has no attribute \"__call__\"|object is not callable", _METHOD),
)


def advise(error: Exception) -> str:
    """Return `. ` and the next step for an exception of a model's code, or an empty text without a known one."""
    text = f"{type(error).__name__}: {error}"
    for pattern, advice in _ADVICE:
        if (match := re.search(pattern, text, re.DOTALL)) is not None:
            named = match.groupdict().get("name")
            return f". {advice if named is None else advice.replace('{name}', named)}"
    return ""
