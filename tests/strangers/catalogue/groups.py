"""All strangers, in groups: the models of a group share a server."""

from collections.abc import Sequence

from tests.strangers.catalogue import keras_applications
from tests.strangers.stranger import Stranger

GROUPS: Sequence[Sequence[Stranger]] = (keras_applications.STRANGERS,)
