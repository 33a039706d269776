"""The whole server behind a rule that refuses requests: `guarded_application.py OPTIONS` is the supervisor.

It prints every attempt that reaches the rule as a JSON line.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from tpuserve_server.core.terms.errors import PermissionDenied, Unauthenticated
from tpuserve_server.hosts import serving_process, supervisor
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.channel import VARIABLE
from tpuserve_server.protocols.guard import Attempt, Rule
from tpuserve_server.startup.app import Server, build
from tpuserve_server.startup.validation import read_settings

# The variable names the directory of the model's base path and the monitoring configuration.
FOLDER_VARIABLE = "GUARDED_FOLDER"
# The variable names a credentials file. Without it, the rule wants the password.
CREDENTIALS_VARIABLE = "GUARDED_CREDENTIALS"
PASSWORD = "open-sesame"


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class PasswordRule:
    """A rule that reports every attempt and accepts only requests with the password."""

    async def check(self, attempt: Attempt) -> None:
        say("attempt", protocol=attempt.protocol, method=attempt.method, path=attempt.path, model=attempt.model)
        credentials = attempt.headers.get("authorization")
        if credentials is None:
            raise Unauthenticated("Say the password")
        if credentials != PASSWORD:
            raise PermissionDenied("That is not the password")


class GuardedServer(Server):
    """A server that reports its addresses in the same form as the echo application."""

    def announce(self, listening: Listening) -> None:
        say("announce", **dataclasses.asdict(listening), pid=os.getpid())


def make_server(folder: Path, rule: Rule | None = None, **flags: object) -> Server:
    """Return a server with every kind of route, whose model has no version."""
    settings = read_settings(
        model_name="m",
        model_base_path=str(folder / "models"),
        monitoring_config_file=folder / "monitoring.config",
        **flags,
    )
    return build(settings, rule=rule)


def _make_guarded() -> Server:
    folder = Path(os.environ[FOLDER_VARIABLE])
    if credentials := os.environ.get(CREDENTIALS_VARIABLE):
        server = make_server(folder, credentials_file=Path(credentials))
    else:
        server = make_server(folder, PasswordRule())
    server.__class__ = GuardedServer
    return server


def main() -> int:
    if VARIABLE in os.environ:
        serving_process.run(_make_guarded, None)
    return supervisor.run("guarded_application", HostOptions(**json.loads(sys.argv[1])), {})


if __name__ == "__main__":
    sys.exit(main())
