from tpuserve_server.startup.listening import host_options
from tpuserve_server.startup.validation import read_settings


def test_ports_that_two_servers_share_wait_for_the_models() -> None:
    settings = read_settings(model_base_path="/m", reuse_port=True, replace_pid=7)
    options = host_options(settings.listening, settings.host)
    assert options.opens_when_ready
    assert options.reuse_port
    assert options.replace_pid == 7


def test_ports_open_at_once_by_default() -> None:
    settings = read_settings(model_base_path="/m")
    assert not host_options(settings.listening, settings.host).opens_when_ready
