"""Training states of optax whose optimizer keeps averages: the parameters by default, an average only by its name."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.jax_averages"
_OPTIONS = ("--model", f"{MODELS}:mlp", "--input", "x:float32[batch,6]", "--batch-sizes", "1,8")


def _taken(name: str, *weights: str, path: str = "checkpoints", warning: str = "") -> Export:
    return Export(name, path, (*_OPTIONS, *weights), warning=warning)


def _refused(name: str, phrase: str, *weights: str, path: str = "checkpoints") -> Export:
    return Export(name, path, (*_OPTIONS, *weights), refusal=Refusal(2, phrase))


def _stranger(name: str, *exports: Export) -> Stranger:
    return Stranger(name, f"{MODELS}:save_{name}", exports)


STRANGERS = (
    _stranger(
        "gradient_average",
        _taken("Orbax", warning="did not use 'opt_state/1/ema', because it may be an average of gradients"),
        _refused("by name", "is far from 'params'", "--weights", "opt_state/1/ema", "--weights-decay", "0.9"),
    ),
    _stranger(
        "biased_average",
        _taken("with decay", "--weights", "ema", "--weights-decay", "0.999", path="checkpoint"),
        _refused("without decay", "the decay was near 0.999", "--weights", "ema", path="checkpoint"),
        _refused(
            "wrong decay", "is far from 'params'", "--weights", "ema", "--weights-decay", "0.9999", path="checkpoint"
        ),
    ),
    _stranger("kept_average", _taken("by name", "--weights", "opt_state/1/ema", "--weights-decay", "0.9")),
    _stranger("schedule_free", _taken("by name", "--weights", "opt_state")),
    _stranger(
        "lookahead",
        _taken("by name", "--weights", "params/slow"),
        _refused("Orbax", "--weights params/fast"),
    ),
)
