from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from tpuserve_server.hosts.application import TlsOptions
from tpuserve_server.startup.config_files import ConfigError
from tpuserve_server.startup.file_checks import warn_of_exposed_files
from tpuserve_server.startup.listening import host_options, read_tls, tls_reader
from tpuserve_server.startup.validation import read_settings


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
    assert read_tls(file) == replace(expected, origin=f"SSLConfig '{file}'")


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
        read_tls(file)


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
        read_tls(file)
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
    assert read_tls(uri) == TlsOptions("k", "c", None, origin=f"SSLConfig '{uri}'")
    settings = read_settings(model_base_path="/m", ssl_config_file=uri)
    warn_of_exposed_files(settings)
    [line] = caplog.messages
    assert line.startswith(f"--ssl_config_file: '{uri}' is an object in a store, and has the private key. ")
    assert tls_reader(settings.listening) is not None
