from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from pydantic import ValidationError

from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.hosts.application import HostOptions, TlsOptions
from tpuserve_server.startup import listening
from tpuserve_server.startup.config_files import ConfigError
from tpuserve_server.startup.file_checks import warn_of_exposed_files
from tpuserve_server.startup.listening import host_options, read_ssl_config, tls_reader
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.validation import read_settings


def named(tls: TlsOptions, file: object) -> TlsOptions:
    """Return the options with the names that they have if they come from the SSLConfig `file`."""
    key, chain, ca = (f"SSLConfig '{file}': {field}" for field in ("server_key", "server_cert", "custom_ca"))
    return replace(tls, key_name=key, chain_name=chain, ca_name=ca)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('server_key: "k\\n" server_cert: "c"', TlsOptions("k\n", "c", None)),
        # Adjacent strings are concatenated: the way to write PEM in such files.
        (
            'server_key: "a\\n"\n  "b\\n" server_cert: "c" custom_ca: "ca" client_verify: true',
            TlsOptions("a\nb\n", "c", "ca"),
        ),
        # Like upstream: an authority has no effect without client_verify.
        ('server_key: "k" server_cert: "c" custom_ca: "ca"', TlsOptions("k", "c", None)),
    ],
)
def test_fields(tmp_path: Path, text: str, expected: TlsOptions) -> None:
    file = tmp_path / "ssl.config"
    file.write_text(text)
    assert read_ssl_config(file) == named(expected, file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks server_key and server_cert$"),
        ('server_key: "k"', "lacks server_cert$"),
        ('server_key: "k" server_cert: "c" client_verify: true', "lacks custom_ca, which client_verify requires"),
        ('server_keys: "k"', "^Error parsing text-format tensorflow.serving.SSLConfig: 1:1: .* no field named"),
    ],
)
def test_what_lacks_something_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "ssl.config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_ssl_config(file)


@pytest.mark.parametrize(
    "text",
    [
        'server_key: "-----BEGIN PRIVATE KEY-----\\nSECRET',
        "server_key: SECRET",
        "server_key: -SECRET",
        'server_key: "k" client_verify: SECRET',
        'server_key: "\\xSECRET"',
        'server_key: "k" "SECRET',
        'server_key: "a"\n"SECRET\nSECRET"',
    ],
)
def test_a_wrong_file_does_not_tell_its_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ssl.config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"SSLConfig: \d+:\d+: .*ssl.config'$") as raised:
        read_ssl_config(file)
    assert "SECRET" not in str(raised.value)


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(TlsOptions("secret", "c", None))


def test_ports_that_two_servers_share_wait_for_the_models() -> None:
    settings = read_settings(model_base_path="/m", reuse_port=True, replace_pid=7)
    options = host_options(settings.listening, settings.host)
    assert options.opens_when_ready
    assert options.reuse_port
    assert options.replace_pid == 7


def test_ports_open_at_once_by_default() -> None:
    settings = read_settings(model_base_path="/m")
    assert not host_options(settings.listening, settings.host).opens_when_ready


def test_tls_in_a_store_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    uri = "memory://tls/ssl.config"
    fsspec.filesystem("memory").pipe_file("/tls/ssl.config", b'server_key: "k" server_cert: "c"')
    assert read_ssl_config(uri) == named(TlsOptions("k", "c", None), uri)
    settings = read_settings(model_base_path="/m", ssl_config_file=uri)
    warn_of_exposed_files(settings)
    [line] = caplog.messages
    assert line.startswith(f"--ssl_config_file: '{uri}' is an object in a store, and has the private key. ")
    assert tls_reader(settings.listening) is not None


class Secret:
    """Files of a Secret as the kubelet mounts them: links through `..data`, which one rename replaces."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")

    def replace(self, **texts: str) -> None:
        self._number += 1
        content = self._folder / f"..{self._number}"
        content.mkdir()
        for name, text in texts.items():
            (content / name.replace("_", ".")).write_text(text)
        link = self._folder / "..data_tmp"
        link.symlink_to(content.name)
        link.replace(self._folder / "..data")

    def settings(self, **more: object) -> Settings:
        files = {"tls_cert_file": f"{self._folder}/tls.crt", "tls_key_file": f"{self._folder}/tls.key"}
        return read_settings(model_base_path="/m", **{**files, **more})


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    secret = Secret(tmp_path)
    secret.replace(tls_crt="c1", tls_key="k1", ca_crt="a1")
    return secret


def test_pem_files_are_the_certificates_and_are_read_again(secret: Secret, tmp_path: Path) -> None:
    settings = secret.settings(tls_client_ca_file=f"{tmp_path}/ca.crt")
    tls = host_options(settings.listening, settings.host).tls
    assert tls is not None
    assert (tls.certificate_chain, tls.private_key, tls.client_ca) == ("c1", "k1", "a1")
    assert (tls.chain_name, tls.key_name) == (f"certificate '{tmp_path}/tls.crt'", f"Key '{tmp_path}/tls.key'")
    secret.replace(tls_crt="c2", tls_key="k2", ca_crt="a2")
    read_again = tls_reader(settings.listening)
    assert read_again is not None
    assert (read_again().certificate_chain, read_again().private_key, read_again().client_ca) == ("c2", "k2", "a2")


def test_a_replacement_between_two_files_gives_no_mixed_pair(
    secret: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_replace(path: FileName) -> str:
        text = Path(str(path)).read_text()
        if text == "k1":
            secret.replace(tls_crt="c2", tls_key="k2")
        return text

    monkeypatch.setattr(listening, "read_text", read_and_replace)
    tls = host_options(secret.settings().listening, HostOptions()).tls
    assert tls is not None
    assert (tls.certificate_chain, tls.private_key) == ("c2", "k2")


@pytest.mark.parametrize("name", ["tls.key", "tls.crt"])
def test_a_file_that_cannot_be_read_is_named(secret: Secret, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"Cannot read '{tmp_path}/{name}': No such file or directory"):
        host_options(secret.settings().listening, HostOptions())
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"Cannot read '{tmp_path}/{name}': Is a directory"):
        host_options(secret.settings().listening, HostOptions())


def test_the_key_must_be_secret_and_the_certificate_not(
    secret: Secret, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).chmod(0o644)
    warn_of_exposed_files(secret.settings())
    [line] = caplog.messages
    assert line.startswith(f"--tls_key_file: Other users can read the secret in '{tmp_path}/tls.key'")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tls_cert_file": "/c"}, "tls_cert_file needs tls_key_file"),
        ({"tls_key_file": "/k"}, "tls_key_file needs tls_cert_file"),
        ({"tls_client_ca_file": "/a"}, "tls_client_ca_file needs tls_cert_file and tls_key_file"),
        ({"tls_cert_file": "/c", "tls_key_file": "/k", "ssl_config_file": "/s"}, "two sources of the certificate"),
    ],
)
def test_flags_that_do_not_make_a_certificate_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read_settings(model_base_path="/m", **flags)
