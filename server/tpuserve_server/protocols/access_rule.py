"""AccessRule: the guard's rule of a server that identifies its clients."""

from tpuserve_server.access.authenticator import Authenticator
from tpuserve_server.access.caller import set_caller
from tpuserve_server.core.terms.errors import Unauthenticated
from tpuserve_server.protocols.guard import ALLOW_ALL, AllOf, Attempt, Rule


class AccessRule:
    """Identifies the client of each request, and checks that it has the role that the request needs."""

    def __init__(self, authenticator: Authenticator) -> None:
        """Identify clients with `authenticator`."""
        self.authenticator = authenticator

    async def check(self, attempt: Attempt) -> None:
        """Set the caller of the request. Later parts check the models and the address of the client.

        Raises:
            Unauthenticated: the credentials are missing or invalid.
            PermissionDenied: the client lacks the role, or may use only some models.
        """
        authenticator = self.authenticator
        try:
            identity = authenticator.identify(attempt.headers, attempt.find_certificate)
        except Unauthenticated:
            # The context may be that of an earlier request of the connection. The log must not show its client.
            set_caller(authenticator.anonymous)
            if attempt.access.roles is not None:
                raise
            # An expired credential must not make a probe fail.
            identity = authenticator.anonymous
        # The refusal of a known client is logged with its name.
        set_caller(identity)
        if not identity.may(attempt.access):
            identity.require(attempt.access, attempt.path)
        # Before the body is read. The service checks the names in messages.
        if identity.models is not None and attempt.model is not None:
            identity.require_model(attempt.model)


def combined_rule(authenticator: Authenticator | None, other: Rule | None) -> Rule:
    """Return the rule that identifies clients first, and then checks `other`. None stands for no rule."""
    rules = [*([] if authenticator is None else [AccessRule(authenticator)]), *([] if other is None else [other])]
    if not rules:
        return ALLOW_ALL
    return rules[0] if len(rules) == 1 else AllOf(rules)
