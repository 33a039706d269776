"""Names of tensors that another release of transformers gave a model in a user's module.

Release 5 renamed the layers of ViT, Swin and others. `save_pretrained` still writes the names of release 4, and
`from_pretrained` converts them. A checkpoint of torch.save has the names of the release that trained.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tpuserve_exporter.models.frameworks import quiet

Tensors = Mapping[str, torch.Tensor]


def convert_names(module: torch.nn.Module, tensors: Tensors) -> Tensors:
    """Return the tensors by the names in `module`, if transformers can convert all of a model, or else unchanged."""
    converted = dict(tensors)
    for path, model in _models(module):
        prefix = f"{path}." if path else ""
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if own and not own.keys() <= model.state_dict().keys() and (values := _convert(model, own)) is not None:
            converted = {name: value for name, value in converted.items() if not name.startswith(prefix)}
            converted |= {prefix + name: value for name, value in values.items()}
    return converted


def _models(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the outermost models of transformers in the module. The builder has imported transformers if it has any."""
    transformers = sys.modules.get("transformers")
    found = list[str]()
    for path, one in module.named_modules() if transformers else ():
        inside = any(not outer or path.startswith(f"{outer}.") for outer in found)
        if not inside and isinstance(one, transformers.PreTrainedModel):  # type: ignore[union-attr]  # see the loop
            found.append(path)
            yield path, one


def _convert(model: Any, tensors: Tensors) -> Tensors | None:  # noqa: ANN401 - a model of transformers
    """Return the tensors as transformers loads them into a model of the same class, or None if some do not fit."""
    try:
        with quiet():
            loaded, found = type(model).from_pretrained(
                None, config=model.config, state_dict=dict(tensors), output_loading_info=True, local_files_only=True
            )
    except Exception:  # the user's own subclass, or shapes that differ: the match of names explains these
        return None
    if any(found.values()):
        return None
    values: Tensors = loaded.state_dict()
    return values
