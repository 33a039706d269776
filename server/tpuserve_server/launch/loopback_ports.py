"""Free ports of the loopback for a server that takes seconds until it listens."""

import socket


def reserve_port() -> int:
    """A port that no other process is given for about a minute, except one that asks for it by number.

    One end of a connection on it was closed first. TCP then keeps the port (TIME_WAIT, RFC 9293 section 3.6) from
    everyone except a listener that sets SO_REUSEADDR, as both hosts do.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with socket.create_connection(place):
            listener.accept()[0].close()
            return int(place[1])
