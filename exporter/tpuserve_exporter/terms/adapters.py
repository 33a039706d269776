"""Names of adapters: trained changes of frozen weights, such as LoRA's. A model without them computes other answers."""

import re

_ADAPTER = re.compile(r"(.*_)?(lora|dora|loha|lokr|ia3)(_.*)?", re.IGNORECASE)
MERGE_ADAPTERS = (
    "merge the adapters (LoRA and alike) into the weights and save the model again, such as with merge_and_unload() of "
    "PEFT, or build the model with them"
)


def is_adapter(name: str) -> bool:
    """Return whether a part of a variable's name is that of an adapter."""
    return any(_ADAPTER.fullmatch(part) for part in re.split(r"[./]", name))
