"""SecretFiles: the certificates in the server's directory, which Envoy reads at its start and after each change.

Envoy watches the file of its secret discovery service (SDS, envoy.config.core.v3.PathConfigSource): a file that is
renamed to that name replaces the secret for new connections. The files contain the key, so they exist only until Envoy
has read them.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from tpuserve_server.hosts.tls import TlsOptions

_SERVER: Final = "server"
_CLIENT_CA: Final = "client_ca"
_ENVOY: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


class SecretFiles:
    """The secrets of one server, in its private directory."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which only this user can read."""
        self._folder = folder

    def context(self, *, has_client_ca: bool) -> dict[str, Any]:
        """Return the part of Envoy's CommonTlsContext that names the secrets."""
        context: dict[str, Any] = {"tls_certificate_sds_secret_configs": [self._source(_SERVER)]}
        if has_client_ca:
            context["validation_context_sds_secret_config"] = self._source(_CLIENT_CA)
        return context

    def write(self, tls: TlsOptions) -> None:
        """Write the secrets for Envoy to read."""
        pair = {
            "certificate_chain": {"inline_string": tls.certificate_chain},
            "private_key": {"inline_string": tls.private_key},
        }
        if tls.client_ca is not None:
            self._write(_CLIENT_CA, {"validation_context": {"trusted_ca": {"inline_string": tls.client_ca}}})
        self._write(_SERVER, {"tls_certificate": pair})

    @staticmethod
    def names(tls: TlsOptions) -> tuple[str, ...]:
        """Return the names of the secrets, which Envoy's statistics have."""
        return (_SERVER,) if tls.client_ca is None else (_SERVER, _CLIENT_CA)

    def remove(self) -> None:
        """Remove the secrets that Envoy has read."""
        for name in (_SERVER, _CLIENT_CA):
            self._path(name).unlink(missing_ok=True)
            self._new_path(name).unlink(missing_ok=True)

    def _source(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "sds_config": {"path_config_source": {"path": str(self._path(name))}, "resource_api_version": "V3"},
        }

    def _write(self, name: str, secret: dict[str, Any]) -> None:
        resource = {"@type": f"{_ENVOY}.Secret", "name": name, **secret}
        new = self._new_path(name)
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(json.dumps({"resources": [resource]}))
        os.replace(new, self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _new_path(self, name: str) -> Path:
        return self._folder / f"{name}.json.new"
