"""Limit of the series of one metric. Series beyond it share one whose labels are OTHER."""

from typing import Final

from tpuserve_server.core.terms.types import ServableId

# Maximum number of series of one metric, plus a few with OTHER. A model may have thousands of signatures.
MOST_SERIES: Final = 1000
# Label value of all models, versions and signatures beyond the limit. No version has the number.
OTHER: Final = "other"
OTHER_VERSION: Final = -1
OTHER_SERVABLE: Final = ServableId(OTHER, OTHER_VERSION)


def version_label(version: int | None) -> str:
    """Return the label value of a version, which is None if the server found none."""
    if version is None:
        return ""
    return OTHER if version == OTHER_VERSION else str(version)


def servable_labels(servable: ServableId) -> tuple[str, str]:
    """Return the label values of a model and its version."""
    return servable.name, version_label(servable.version)
