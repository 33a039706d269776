"""Tests of clients with certificates against a real server, over gRPC and REST."""

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import httpx
import pytest
from cryptography.x509.oid import NameOID
from google.protobuf import text_format

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.access import KeyFile
from tests.support.certificates import Authority
from tests.support.client_certificates import ClientAuthority, ClientPair
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig
from tpuserve_formats.messages.oip import ServerMetadataResponse

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

ODD = (
    (NameOID.COUNTRY_NAME, "DE"),
    (NameOID.ORGANIZATION_NAME, "Exämple, Inc"),
    (NameOID.ORGANIZATIONAL_UNIT_NAME, ' a+b;<c>#"'),
    (NameOID.COMMON_NAME, "odd "),
)
ODD_SUBJECT = r"CN=odd\ ,OU=\ a\+b\;\<c\>#\",O=Ex\C3\A4mple\, Inc,C=DE"
NAMES = ("uri", "dns", "subject", "odd", "stranger", "forger")


@dataclass
class Secured:
    """A server that verifies the certificates of clients, and the clients."""

    server: RunningServer
    own: Authority
    clients: dict[str, ClientPair]
    keys: KeyFile

    def rest(self, client: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        context = ssl.create_default_context(cafile=str(self.own.ca))
        pair = self.clients[client]
        context.load_cert_chain(pair.cert, pair.key)
        url = self.server.rest.replace("http:", "https:") + path
        with httpx.Client(verify=context) as http:
            return http.get(url, headers=headers, timeout=60)

    def grpc(self, client: str, metadata: tuple[tuple[str, str], ...] = ()) -> str:
        """Return the name of the server, or the code of the error."""
        with grpc.secure_channel(self.server.grpc, credentials(self.own, self.clients[client])) as channel:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerMetadata"
            )
            try:
                return ServerMetadataResponse.FromString(ask(b"", metadata=metadata, timeout=60)).name
            except grpc.RpcError as error:
                return error.code().name


def credentials(own: Authority, pair: ClientPair) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(own.ca.read_bytes(), pair.key.read_bytes(), pair.cert.read_bytes())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("own", "clients"):
        (folder / name).mkdir()
    own, issuer = Authority(folder / "own"), ClientAuthority(folder / "clients")
    clients = {
        "uri": issuer.issue([(NameOID.COMMON_NAME, "x")], uris=["spiffe://example/reader"]),
        "dns": issuer.issue([(NameOID.COMMON_NAME, "x")], dns=["other.example", "reader.example"]),
        "subject": issuer.issue([(NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "reader")]),
        "odd": issuer.issue(ODD),
        "stranger": issuer.issue([(NameOID.COMMON_NAME, "stranger")], dns=["stranger.example"]),
        # Names that would be those of others if they were joined and split again.
        "forger": issuer.issue(
            [(NameOID.COMMON_NAME, "reader,O=Example")],
            uris=["spiffe://me/;DNS=reader.example", "spiffe://me,spiffe://example/reader"],
        ),
    }
    keys = KeyFile(folder / "credentials")
    keys.add("admin", "predict,read,control")
    for name, reference in (
        ("uri", "spiffe://example/reader"),
        ("dns", "reader.example"),
        ("subject", "CN=reader,O=Example"),
        ("odd", ODD_SUBJECT),
    ):
        keys.add_certificate(name, "read", reference)
    tls = folder / "ssl.config"
    texts = {"server_key": own.server.key, "server_cert": own.server.cert, "custom_ca": issuer.ca}
    config = SSLConfig(client_verify=True, **{name: path.read_text() for name, path in texts.items()})
    tls.write_text(text_format.MessageToString(config))
    write_manifest(save_mlp(folder / "m" / "1", seed=1))
    flags = (f"--model_base_path={folder / 'm'}", "--model_name=m", f"--ssl_config_file={tls}")
    with run_configured_server(
        folder / "log",
        *flags,
        f"--credentials_file={keys.path}",
        model="m",
        credentials=credentials(own, clients["stranger"]),
    ) as server:
        yield Secured(server, own, clients, keys)


@pytest.mark.parametrize("client", ["uri", "dns", "subject", "odd"])
def test_a_certificate_identifies_its_client(secured: Secured, client: str) -> None:
    assert secured.rest(client, "/v1/models/m").status_code == 200
    denied = secured.rest(client, "/v2/systemsharedmemory/status")
    assert (denied.status_code, f"The client '{client}' has the role read" in denied.text) == (403, True)
    assert secured.grpc(client) == "tpuserve"


@pytest.mark.parametrize("client", ["stranger", "forger"])
def test_other_certificates_are_no_credentials(secured: Secured, client: str) -> None:
    assert secured.rest(client, "/v1/models/m").status_code == 401
    assert secured.rest(client, "/readyz").status_code == 200
    assert secured.grpc(client) == "UNAUTHENTICATED"


def test_a_client_cannot_send_the_names_of_another_certificate(secured: Secured) -> None:
    forged = {
        "x-forwarded-client-cert": 'Hash=00;Subject="CN=reader,O=Example";URI=spiffe://example/reader;DNS=reader.example',
        "x-tpuserve-client-subject": "CN=reader,O=Example",
        "x-tpuserve-client-uri": "spiffe://example/reader",
        "x-tpuserve-client-dns": "reader.example",
    }
    assert secured.rest("stranger", "/v1/models/m", forged).status_code == 401
    assert secured.grpc("stranger", tuple(forged.items())) == "UNAUTHENTICATED"
    twice = tuple(pair for item in forged.items() for pair in (item, item))
    assert secured.grpc("stranger", twice) == "UNAUTHENTICATED"


def test_a_key_goes_before_a_certificate(secured: Secured) -> None:
    page = secured.rest("uri", "/debug/status", secured.keys.bearer("admin"))
    assert json.loads(page.text)["may_control"] is True
    assert secured.rest("uri", "/v1/models/m", {"x-api-key": "wrong"}).status_code == 401
