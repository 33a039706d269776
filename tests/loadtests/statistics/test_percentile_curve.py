from tpuserve_loadtests.statistics.histogram import LatencyHistogram, percentile_curve


def histogram(*latencies_us: int) -> LatencyHistogram:
    found = LatencyHistogram()
    for latency_us in latencies_us:
        found.record(latency_us)
    return found


def test_levels_are_those_of_hdrhistogram_and_end_where_a_share_is_less_than_a_request() -> None:
    parts = [level.part for level in percentile_curve(histogram(*range(1, 5)))]
    assert [round(part, 9) for part in parts] == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 1]


def test_each_level_has_its_percentile_and_how_many_it_covers() -> None:
    found = {round(level.part, 9): level for level in percentile_curve(histogram(*range(1, 101)))}
    assert (found[0.5].latency_us, found[0.5].count) == (50, 50)
    assert (found[1].latency_us, found[1].count) == (100, 100)


def test_nothing_has_no_curve() -> None:
    assert percentile_curve(LatencyHistogram()) == []
