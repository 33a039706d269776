"""Tests for the sockets between front-ends and the engine."""

import asyncio
import socket

import pytest

from tpuserve_server.hosts.envoy.links import LINK_VARIABLE, Links, pass_link, take_link


async def until_end(link: socket.socket) -> None:
    link.setblocking(False)
    if await asyncio.get_running_loop().sock_recv(link, 10) == b"wrong":
        raise ValueError("a message that nobody understands")


async def test_each_front_end_is_served_until_its_end_and_one_that_fails_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor, engine = socket.socketpair()
    links = Links(engine, until_end)
    front_ends = []
    for _ in range(2):
        front_end, other = socket.socketpair()
        with other:
            pass_link(supervisor, other)
        front_ends.append(front_end)
    good, bad = front_ends
    bad.send(b"wrong")
    bad.setblocking(False)
    # The link ends, so that the front-end learns of it.
    assert await asyncio.get_running_loop().sock_recv(bad, 1) == b""
    assert "The link to a front-end process failed" in caplog.text
    assert not await links.finish(0)
    good.close()
    assert await links.finish(60)
    supervisor.close()
    bad.close()
    links.close()
    with socket.socket() as unused:
        pass_link(supervisor, unused)  # The engine and its socket are gone.


def test_link_of_a_front_end_is_taken_once_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    monkeypatch.setenv(LINK_VARIABLE, str(theirs.detach()))
    with ours, take_link() as taken:
        ours.send(b"x")
        assert (taken.recv(1), taken.get_inheritable()) == (b"x", False)
        with pytest.raises(KeyError):
            take_link()
