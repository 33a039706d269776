"""IdentityOptions: the flags of credentials. Cheap to import, because the command line is generated from it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.access.access import ROLE_NAMES, Identity, Role
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting
from tpuserve_server.core.terms.storage import FileName


def _parse_roles(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


@dataclass(frozen=True, slots=True)
class IdentityOptions:
    """The files of credentials, and the roles of clients without any.

    Raises:
        InvalidArgument: tokens lack an issuer or an audience, a flag needs another one, or a role is unknown.
    """

    credentials_file: Annotated[
        FileName | None,
        Setting(
            "Access",
            "File with the API keys and client certificates, their roles and models. If this flag or another one of "
            "this section is set, every request except probes needs a role.",
        ),
    ] = None
    jwt_jwks_file: Annotated[
        FileName | None,
        Setting(
            "Access",
            "File with the public keys (JWKS) of tokens (JWT) that the server accepts. Needs jwt_issuer and "
            "jwt_audience.",
        ),
    ] = None
    jwt_issuer: Annotated[str | None, Setting("Access", "Issuer that a token must have.")] = None
    jwt_audience: Annotated[str | None, Setting("Access", "Audience that a token must have.")] = None
    jwt_role_claim: Annotated[
        str,
        Setting(
            "Access",
            "Claim of a token with its roles, as a list or a text with spaces. Dots lead into objects, such as "
            "realm_access.roles.",
            min_length=1,
        ),
    ] = "roles"
    jwt_model_claim: Annotated[
        str | None,
        Setting(
            "Access",
            "Claim of a token with the models that it may use, in the same form. A token without the claim may use "
            "none. Not set: all models.",
        ),
    ] = None
    anonymous_roles: Annotated[
        tuple[str, ...] | None,
        Setting(
            "Access",
            "Roles of clients without credentials, such as predict,read. None of them if another flag of this section "
            "is set.",
            parse=_parse_roles,
        ),
    ] = None
    credentials_poll_wait_seconds: Annotated[
        float,
        Setting(
            "Access",
            "Time between polls of the files of credentials; 0: read them again only at SIGHUP.",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        if self.jwt_jwks_file is not None and not (self.jwt_issuer and self.jwt_audience):
            raise InvalidArgument("jwt_jwks_file needs jwt_issuer and jwt_audience: other tokens have the same keys")
        if self.jwt_jwks_file is None and (self.jwt_issuer or self.jwt_audience or self.jwt_model_claim):
            raise InvalidArgument("jwt_issuer, jwt_audience and jwt_model_claim need jwt_jwks_file")

        if unknown := [name for name in self.anonymous_roles or () if name not in ROLE_NAMES]:
            raise InvalidArgument(f"anonymous_roles: expected some of {', '.join(ROLE_NAMES)}, got {unknown[0]!r}")

    @property
    def are_set(self) -> bool:
        """Whether the server identifies its clients."""
        return not (self.credentials_file is None and self.jwt_jwks_file is None and self.anonymous_roles is None)

    @property
    def anonymous(self) -> Identity:
        """The identity of clients without credentials."""
        return Identity("", frozenset(map(Role, self.anonymous_roles or ())))
