"""The error of a host. Imports nothing, because the supervisor imports this module, too."""


class HostError(Exception):
    """A host cannot start or continue. The message is for the operator and states what to do."""
