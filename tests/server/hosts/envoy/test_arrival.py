import time

import pytest

from tpuserve_server.hosts.envoy.arrival import ARRIVAL_HEADER, lag_s

NAME = ARRIVAL_HEADER.encode()


def test_the_lag_counts_from_the_stamp() -> None:
    stamp = b"%.6f" % (time.time() - 20.0)
    assert lag_s({"headers": [(b"a", b"b"), (NAME, stamp), (b"c", b"d")]}) == pytest.approx(20.0, abs=10.0)


@pytest.mark.parametrize("headers", [[], [(NAME, b"now")], [(NAME, b"0")], [(NAME, b"nan")], [(NAME, b"9e12")]])
def test_a_stamp_that_is_not_credible_means_no_lag(headers: list[tuple[bytes, bytes]]) -> None:
    assert lag_s({"headers": headers}) == 0.0
