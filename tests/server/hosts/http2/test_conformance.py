"""Every case of RFC 9113 and RFC 7541 that a client can cause, against one server that outlives them all."""

import pytest
from hyperframe.frame import SettingsFrame

from tests.server.hosts.http2.abuse_cases import ABUSE_CASES
from tests.server.hosts.http2.case import Case
from tests.server.hosts.http2.connection_cases import CONNECTION_CASES
from tests.server.hosts.http2.message_cases import MESSAGE_CASES
from tests.server.hosts.http2.peer import CLOSED, IGNORED, PING, PREFACE, SETTINGS, Peer, frame, request, whole

_CASES = [*CONNECTION_CASES, *MESSAGE_CASES, *ABUSE_CASES]


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_server_does_what_the_section_says(case: Case, http2_port: int) -> None:
    with Peer(http2_port) as peer:
        if isinstance(case.sends, bytes):
            peer.send(case.sends)
        else:
            case.sends(peer)
        wanted = frozenset({case.differs_in}) if case.differs else case.wanted
        found = peer.outcome(stream=case.stream, expects_nothing=IGNORED in wanted)
        is_over = found.startswith("GOAWAY") and peer.ends()
    assert is_over == found.startswith("GOAWAY")
    assert found in wanted, "h2corn no longer differs" if case.differs else "not allowed"


def test_settings_are_the_first_frame_of_the_server(http2_port: int) -> None:
    with Peer(http2_port, preface=False) as peer:
        peer.send(PREFACE + frame(SETTINGS))
        assert isinstance(next(peer.frames()), SettingsFrame)


@pytest.mark.parametrize(
    "first",
    [b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", PREFACE + frame(PING, payload=bytes(8)), PREFACE + frame(SETTINGS, 1)],
    ids=["wrong preface", "ping before settings", "acknowledgement before settings"],
)
def test_a_wrong_beginning_ends_the_connection(first: bytes, http2_port: int) -> None:
    with Peer(http2_port, preface=False) as peer:
        peer.send(first)
        assert peer.outcome() in {"GOAWAY PROTOCOL_ERROR", CLOSED}


def test_server_still_answers_after_every_case(http2_port: int) -> None:
    with Peer(http2_port) as peer:
        peer.send(whole(request()))
        assert peer.outcome() == "response 200"
