"""Entry points of all programs. Each checks the installation before it imports anything else of tpuserve."""

from collections.abc import Callable
from importlib import import_module

from tpuserve_command.installation import refuse_mixed_installation


def _program(target: str) -> Callable[[], None]:
    """Return a function that checks the installation, then imports and calls MODULE:FUNCTION."""

    def start() -> None:
        refuse_mixed_installation()
        module, _, name = target.partition(":")
        getattr(import_module(module), name)()

    return start


tpuserve = _program("tpuserve_command.dispatch:main")

predict = _program("tpuserve_client.cli:predict_main")
status = _program("tpuserve_client.cli:status_main")
protos = _program("tpuserve_client.cli:protos_main")

export = _program("tpuserve_exporter.command.exporting:main")
inspect = _program("tpuserve_exporter.command.inspecting:main")
check = _program("tpuserve_exporter.command.checking:main")
sign = _program("tpuserve_exporter.command.signing:main")
keygen = _program("tpuserve_exporter.command.signing:keygen_main")
deploy = _program("tpuserve_exporter.command.deploying:main")

serve = _program("tpuserve_server.startup.command:main")
health = _program("tpuserve_server.startup.health:main")
key = _program("tpuserve_server.startup.key:main")
tensorflow_model_server = _program("tpuserve_server.startup.command:tensorflow_model_server")

loadtest = _program("tpuserve_loadtests.cli:main")
rollout = _program("tpuserve_loadtests.cli.rollout_command:main")
