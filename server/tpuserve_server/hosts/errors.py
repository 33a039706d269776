"""The error of a host. Imports nothing: the supervisor reads it too."""


class HostError(Exception):
    """A host cannot start or go on. The message is one sentence for an operator and says what to do."""
