"""Errors of `tpuserve_server.start`."""


class StartFailed(Exception):
    """Error of a server that did not become ready. The server is stopped.

    The message names the model or the setting, and the reason. `log` is the server's complete log.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log
