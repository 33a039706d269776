"""Core dumps of a process that holds a private key."""

import resource


def disable_core_dumps() -> None:
    """Keep this process and its children from writing core dumps, which contain the key and the requests in memory.

    To get one nevertheless, run `prlimit --core=unlimited --pid PID` as the server's user.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
