"""Names of loggers with rules of their own."""

from typing import Final

# The server's answers to its command line. Lines of text and of the console have no time and no level, only this name.
COMMAND: Final = "tpuserve"
# Lines of requests. The access log limits them by itself.
ACCESS: Final = "tpuserve.access"
