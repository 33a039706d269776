"""Free loopback ports for a server that takes seconds to start listening."""

import socket


def reserve_port() -> int:
    """Return a port that the kernel gives for about a minute only to a process that binds it by number.

    A server may take seconds to start listening. Until then the kernel must not give its port to another server, or to
    a client. A client with that port would connect to itself.

    The end of a connection that closes first keeps its port in TIME_WAIT (RFC 9293 section 3.6). Meanwhile only a
    listener that binds the port by number with SO_REUSEADDR gets it, as the server does.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with socket.create_connection(place):
            listener.accept()[0].close()
            return int(place[1])
