"""Tests that the programs of the documentation in Go, Java and C++ get the server's answers."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.examples.clients.conftest import Digits
from tests.examples.clients.debian13 import Debian13
from tests.support.optional import needs
from tpuserve_client.cli import protos

CLIENTS = Path(__file__).parents[3] / "examples" / "clients"
# Debian's packages and the compilers take minutes.
pytestmark = [
    needs("mmdebstrap"), pytest.mark.slow, pytest.mark.timeout(2400), pytest.mark.xdist_group(__name__)
]  # fmt: skip

# Debian has the sources of Go's packages, so that no module is downloaded.
_GO = "export GOPATH=/work:/usr/share/gocode GO111MODULE=off GOFLAGS=-buildvcs=false GOCACHE=/tmp/go; "
_PACKAGE = "Mgrpc_predict_v2.proto=digits/inference"
BUILD = {
    "go": f"""
        mkdir -p src && cp -r go src/digits && mkdir src/digits/inference
        protoc -Iprotos --go_out=src --go_opt={_PACKAGE} --go-grpc_out=src --go-grpc_opt={_PACKAGE} \
            grpc_predict_v2.proto
        {_GO}
        test -z "$(gofmt -l src/digits/rest src/digits/grpc)"
        go vet digits/rest digits/grpc
        go build -o go-rest digits/rest
        go build -o go-grpc digits/grpc
    """,
    "java": """
        mkdir classes && cd java
        protoc -I../protos --java_out=. --grpc-java_out=. --plugin=protoc-gen-grpc-java=$(which grpc_java_plugin) \
            grpc_predict_v2.proto
        javac -cp '/usr/share/java/*' -d ../classes *.java inference/*.java
    """,
    "cpp": """
        cd cpp
        protoc -I../protos --cpp_out=. --grpc_out=. --plugin=protoc-gen-grpc=$(which grpc_cpp_plugin) \
            grpc_predict_v2.proto
        g++ -std=c++17 -Wall -Wextra -Werror -c grpc.cpp
        g++ -std=c++17 grpc.o grpc_predict_v2.pb.cc grpc_predict_v2.grpc.pb.cc -o digits \
            $(pkg-config --cflags --libs grpc++ protobuf)
    """,
}
# Debian's other files contain several loggers, which complain about each other.
_LIBRARIES = "$(printf '%s:' /usr/share/java/{grpc-,netty-,perfmark-api,protobuf,guava,gson}*.jar)"
_JAVA = f"java -cp {_LIBRARIES}classes "
_TRUST = "-Djavax.net.ssl.trustStore=trust.p12 -Djavax.net.ssl.trustStorePassword=changeit "


@dataclass(frozen=True)
class Program:
    """How to run a program, how to run it with the authority in `ca.pem`, and how it reports an unknown client."""

    language: str
    command: str
    with_ca: str = ""
    unauthenticated: str = ""
    over_rest: bool = False


PROGRAMS = [
    Program("go", "./go-rest", "SSL_CERT_FILE=ca.pem ./go-rest", "401: ", over_rest=True),
    Program("go", "./go-grpc", "TPUSERVE_CA=ca.pem ./go-grpc", "Unauthenticated: "),
    Program("java", f"{_JAVA} Rest", f"{_JAVA} {_TRUST} Rest", "401: ", over_rest=True),
    # Debian's Netty cannot use TLS for HTTP/2 with its Java.
    Program("java", f"{_JAVA} Grpc"),
    Program("cpp", "cpp/digits", "TPUSERVE_CA=ca.pem cpp/digits", "status 16: "),
]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, secured: Digits) -> Iterator[Debian13]:
    """Build every program, and import the certificate authority of the server into Java's trust store."""
    debian = Debian13(tmp_path_factory.mktemp("debian") / "root")
    for language in BUILD:
        shutil.copytree(CLIENTS / language, debian.work / language)
    assert CliRunner().invoke(protos, [str(debian.work / "protos")]).exit_code == 0
    assert secured.ca is not None
    shutil.copy(secured.ca, debian.work / "ca.pem")
    keytool = "keytool -importcert -file ca.pem -keystore trust.p12 -storepass changeit -noprompt"
    for script in (*BUILD.values(), keytool):
        built = debian.run(script)
        assert built.returncode == 0, built.stderr
    yield debian
    debian.remove()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.command.split()[-1])
def test_programs_print_the_predictions(debian: Debian13, digits: Digits, program: Program) -> None:
    address = digits.rest if program.over_rest else digits.grpc
    done = debian.run(f"{program.command} {address}")
    assert (done.stdout, done.stderr, done.returncode) == (digits.output, "", 0)


@pytest.mark.parametrize(
    "program", [one for one in PROGRAMS if one.with_ca], ids=lambda program: program.command.split()[-1]
)
def test_programs_use_tls_and_a_key(debian: Debian13, secured: Digits, program: Program) -> None:
    address = secured.rest if program.over_rest else secured.grpc
    done = debian.run(f"{program.with_ca} {address}", TPUSERVE_API_KEY=secured.key)
    assert (done.stdout, done.stderr, done.returncode) == (secured.output, "", 0)
    done = debian.run(f"{program.with_ca} {address}")
    assert done.returncode == 1
    assert done.stderr.startswith(program.unauthenticated)
    assert done.stdout == ""
