"""The echo application behind a tunnel, in one process of the Envoy host: `tunnelled_echo.py envoy OPTIONS`."""

import json
import socket
import sys
from typing import TYPE_CHECKING

from tests.server.hosts.echo_application import EchoApplication
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.disconnects import DisconnectWatch
from tpuserve_server.hosts.envoy.entry import EnvoyEntry
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.link.connection import Connection
from tpuserve_server.logs.configuration import configure_logging
from tpuserve_server.tunnel.client import Tunnel
from tpuserve_server.tunnel.engine_calls import EngineCalls
from tpuserve_server.tunnel.server import TunnelServer

if TYPE_CHECKING:
    from tpuserve_server.hosts.application import Application
    from tpuserve_server.hosts.envoy.channel import ChildSetup


class TunnelledEntry(EnvoyEntry):
    """An entry whose requests all take the tunnel."""

    def _carry(self, application: "Application", setup: "ChildSetup") -> None:
        super()._carry(application, setup)
        front, engine = (Connection(end) for end in socket.socketpair())
        in_flight = InFlight()
        app = EngineCalls(application, setup.options.max_message_bytes, in_flight, DisconnectWatch())
        server, tunnel = TunnelServer(engine, app, in_flight), Tunnel(front, self._in_flight)
        front.start(tunnel.handlers(), tunnel.end)
        engine.start(server.handlers(), server.end)
        self._grpc = self._rest = tunnel  # type: ignore[assignment]  # in the place of both


asgi = TunnelledEntry(lambda _: EchoApplication())

if __name__ == "__main__":
    from tpuserve_server.hosts.envoy import host

    configure_logging("text")
    sys.exit(host.run("tunnelled_echo:asgi", HostOptions(**json.loads(sys.argv[2])), {}))
