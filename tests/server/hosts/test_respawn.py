"""Tests for the pauses between new starts."""

from tpuserve_server.hosts.supervisor import HEALTHY_S, Respawns


def test_first_new_start_follows_at_once_and_the_pause_grows_to_half_a_minute() -> None:
    respawns = Respawns()
    assert [respawns.pause_s(1.0) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_long_life_forgets_earlier_ends() -> None:
    respawns = Respawns()
    assert [respawns.pause_s(lived_s) for lived_s in (1, 1, 1, HEALTHY_S, 1, 1)] == [0, 1, 2, 0, 1, 2]
