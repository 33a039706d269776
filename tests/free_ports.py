"""Ports of the loopback for servers that must be told theirs."""

import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, all different, and that nobody is given who asks for any, for a minute from now.

    A server may take seconds until it listens: meanwhile others must not be given its port, nor may who connects to it
    in vain be given it for his own end, which would connect him with himself.
    """
    return [_reserved_port() for _ in range(count)]


def _reserved_port() -> int:
    # A connection was there, and this end of it was closed first: TCP keeps the port (TIME_WAIT) from all but those who
    # name it and set SO_REUSEADDR, as servers do.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with socket.create_connection(place):
            listener.accept()[0].close()
            return int(place[1])
