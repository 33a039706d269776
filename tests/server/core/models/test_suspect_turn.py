"""Tests for the turn of versions that may have ended the process."""

import threading
from concurrent.futures import ThreadPoolExecutor

from tpuserve_server.core.models.journal import SuspectTurn


def test_a_thread_takes_its_turn_again_and_another_waits_for_its_end() -> None:
    turn = SuspectTurn(longest_s=600)
    assert turn.take()
    assert turn.take()
    taken = threading.Event()

    def take() -> None:
        assert turn.take()
        taken.set()
        turn.give_back()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(take)
        turn.give_back()
        assert not taken.is_set()
        turn.give_back()
        other.result(60)


def test_nobody_waits_for_a_turn_that_lasts_too_long() -> None:
    turn = SuspectTurn(longest_s=0)
    assert turn.take()
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(turn.take).result(60)
        turn.give_back()
        assert pool.submit(turn.take).result(60)
