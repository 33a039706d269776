"""All third-party models, in groups that share a server."""

from collections.abc import Sequence

from tests.strangers.catalogue import (
    hugging_face,
    jax_averages,
    jax_checkpoints,
    jax_models,
    keras_applications,
    keras_models,
    keras_states,
    labelled_models,
    public_reports,
    saved_models,
    tf1_graphs,
    torch_checkpoints,
    torch_models,
)
from tests.strangers.stranger import Stranger

GROUPS: Sequence[Sequence[Stranger]] = (
    tf1_graphs.STRANGERS,
    jax_models.STRANGERS,
    jax_averages.STRANGERS,
    jax_checkpoints.STRANGERS,
    torch_models.STRANGERS,
    torch_checkpoints.STRANGERS,
    hugging_face.STRANGERS,
    saved_models.STRANGERS,
    keras_models.STRANGERS,
    labelled_models.STRANGERS,
    keras_states.STRANGERS,
    keras_applications.STRANGERS,
    public_reports.STRANGERS,
)
