"""ReloadOptions: the flags that limit the paths of reload requests. Cheap to import, for the command line."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import check_path
from tpuserve_server.core.terms.setting import Setting


@dataclass(frozen=True, slots=True)
class ReloadOptions:
    """Directories and URIs that reload requests may use. An empty tuple means those of the start.

    Raises:
        InvalidArgument: a directory is relative.
    """

    model_roots: Annotated[
        tuple[str, ...],
        Setting(
            "Operations",
            "Directories and URIs, such as gs://bucket/models, in which reload requests may name base paths.",
            name="reload_roots",
            shown_default="the parents of the base paths at the start, and MODEL_BASE_PATH",
            page="directories and URIs, such as `gs://bucket/models`, in which "
            "[reload requests](limits.md#paths-of-a-reload) may name base paths, separated by commas",
            page_default="the parents of the base paths at the start, and `$MODEL_BASE_PATH`",
        ),
    ] = ()
    log_roots: Annotated[
        tuple[str, ...],
        Setting(
            "Operations",
            "Directories in which reload requests may name prefixes of request logs.",
            name="reload_log_roots",
            shown_default="those of the request logs at the start",
            page="directories in which [reload requests](limits.md#paths-of-a-reload) may name prefixes of request "
            "logs, separated by commas",
            page_default="those of the request logs at the start",
        ),
    ] = ()

    def __post_init__(self) -> None:
        for root in (*self.model_roots, *self.log_roots):
            check_path("The root", root)
        if relative := [root for root in self.model_roots if not root.startswith("/") and "://" not in root]:
            raise InvalidArgument(f"reload_roots must be absolute paths or URIs; was {relative[0]!r}")
        if relative := [root for root in self.log_roots if not root.startswith("/")]:
            raise InvalidArgument(f"reload_log_roots must be absolute paths; was {relative[0]!r}")
