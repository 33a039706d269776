import gc

from tpuserve_server.core.system.garbage import settle_garbage_collector


def test_what_is_there_at_the_start_is_never_collected_again() -> None:
    thresholds = gc.get_threshold()
    try:
        # The default of Python 3.11 and 3.12. Python 3.13's default is the server's setting.
        gc.set_threshold(700, 10, 10)
        settle_garbage_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 700
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as tests/conftest.py does
        gc.set_threshold(*thresholds)
