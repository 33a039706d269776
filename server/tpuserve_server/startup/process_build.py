"""Construction of the server in the serving process."""

from typing import TYPE_CHECKING

from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.system.memory import release_library_pages, settle_garbage_collector
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.observe.logs.configuration import configure_logging
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.text_format import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuserve_server.core.models.configured_models import ConfiguredModels
    from tpuserve_server.protocols.guard import Rule
    from tpuserve_server.startup.app import Server


def build_server(
    settings: Settings,
    journal: Journal | None = None,
    make_rule: "Callable[[ConfiguredModels], Rule] | None" = None,
    record: ChangeRecord | None = None,
) -> "Server":
    """Build the server, and configure the process's log and garbage collector. Call this once in a process.

    See `app.build` for the arguments.

    Raises:
        HostError: a configuration file cannot be used.
    """
    configure_logging(settings.server.log_format)
    from tpuserve_server.startup.app import build

    try:
        server = build(settings, make_rule, journal, record)
    except ConfigError as error:  # The file was valid when the flags were read.
        raise HostError(str(error)) from error
    settle_garbage_collector()
    release_library_pages()
    return server
