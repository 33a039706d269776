"""ResponseCacheOptions: the response cache's flag. Cheap to import, because the command line is generated from it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import Setting


@dataclass(frozen=True, slots=True)
class ResponseCacheOptions:
    """The bound of the response cache of each model whose configuration has none. 0: no cache."""

    max_bytes: Annotated[
        int,
        Setting(
            "Models",
            "Maximum memory for the responses that the server keeps of each model, to answer equal requests without a "
            "run; 0 keeps none. response_cache in a model's configuration overrides it.",
            name="response_cache_max_bytes",
            page="maximum memory for the responses that the server keeps of each model; 0 keeps none. `response_cache` "
            "in a model's configuration overrides it ([Response cache](../how-to/serve/response-cache.md))",
            at_least=0,
        ),
    ] = 0
