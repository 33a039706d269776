"""Tests for the figures of several Envoys as one page."""

import pytest

from tpuserve_server.hosts.envoy.fleet_figures import FigureError, FleetFigures, sum_pages

COUNTER, GAUGE = "envoy_http_downstream_rq_xx", "envoy_http_downstream_cx_active"


def page(requests: int, connections: int, code_class: str = "2") -> str:
    return (
        f"# TYPE {COUNTER} counter\n"
        f'{COUNTER}{{envoy_response_code_class="{code_class}"}} {requests}\n'
        f"# TYPE {GAUGE} gauge\n{GAUGE} {connections}\n"
    )


def test_series_with_the_same_labels_are_added_and_others_stay() -> None:
    assert sum_pages((page(2**53, 1), page(1, 2), page(3, 4, code_class="5"))) == (
        f"# TYPE {COUNTER} counter\n"
        f'{COUNTER}{{envoy_response_code_class="2"}} {2**53 + 1}\n'
        f'{COUNTER}{{envoy_response_code_class="5"}} 3\n'
        f"# TYPE {GAUGE} gauge\n{GAUGE} 7\n"
    )


def test_histograms_are_added_by_bucket() -> None:
    one = '# TYPE h histogram\nh_bucket{le="0.5"} 1\nh_bucket{le="+Inf"} 3\nh_sum 1.25\nh_count 3\n'
    both = '# TYPE h histogram\nh_bucket{le="0.5"} 2\nh_bucket{le="+Inf"} 6\nh_sum 2.5\nh_count 6\n'
    assert sum_pages((one, one)) == both


@pytest.mark.parametrize(
    ("name", "combined"),
    [
        ("envoy_overload_envoy_overload_actions_stop_accepting_requests_active", 1),
        ("envoy_overload_envoy_resource_monitors_global_downstream_max_connections_pressure", 1),
        ("envoy_server_days_until_first_cert_expiring", 0),
        ("envoy_server_memory_allocated", 1),
    ],
)
def test_levels_are_the_highest_and_dates_the_first(name: str, combined: int) -> None:
    pages = [f"# TYPE {name} gauge\n{name} {value}\n" for value in (0, 1)]
    assert sum_pages(pages) == f"# TYPE {name} gauge\n{name} {combined}\n"


def test_a_label_with_another_line_separator_stays_whole() -> None:
    series = 'x{envoy_listener_address="a\x85b c"}'
    assert sum_pages([f"# TYPE x counter\n{series} 1\n"] * 2) == f"# TYPE x counter\n{series} 2\n"


def test_an_envoy_that_has_ended_leaves_its_counters() -> None:
    figures = FleetFigures()
    assert figures.page() == ""
    figures.put(1, page(5, 10))
    figures.put(2, page(1, 1))
    figures.put(2, page(2, 3))
    assert figures.page() == page(7, 13)
    for source in (1, 1, 3):
        figures.end(source)
    assert figures.page() == page(7, 3)
    figures.put(4, page(1, 1))
    assert figures.page() == page(8, 4)


def test_an_envoy_without_figures_fails_the_page_until_it_reports_them_or_ends() -> None:
    figures = FleetFigures()
    figures.put(1, page(1, 1))
    figures.fail(2, "Envoy's admin interface does not respond")
    with pytest.raises(FigureError, match="does not respond"):
        figures.page()
    figures.put(2, page(1, 1))
    assert figures.page() == page(2, 2)
    figures.fail(1, "silent")
    figures.end(1)
    assert figures.page() == page(2, 1)
