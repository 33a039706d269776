"""Free ports of the loopback for a server that takes seconds until it listens."""

import socket


def reserve_port() -> int:
    """Return a port that the kernel gives to no other process for about a minute, except by number.

    A server may take seconds until it listens. Meanwhile the kernel must give its port neither to another server nor to
    a client that tries to connect, which would then connect to itself.

    The end of a connection that closes first keeps its port (TIME_WAIT, RFC 9293 section 3.6) from all but listeners
    that name it and set SO_REUSEADDR, as both hosts do.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with socket.create_connection(place):
            listener.accept()[0].close()
            return int(place[1])
