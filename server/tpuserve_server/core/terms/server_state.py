"""ServerState: the state of the whole server, for people and metrics."""

import enum


class ServerState(enum.Enum):
    """State of the server. The values are labels of a metric."""

    # Not ready, because the start of a model has not ended.
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not_ready"
    DRAINING = "draining"
