"""Tests for the content of every command's page. test_loadtest_report_in_browser tests the appearance."""

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from tests.loadtests.recorded_runs import open_load, recorded_run
from tests.loadtests.report_pages import (
    HOSTILE,
    PAGES,
    SETTINGS,
    comparison,
    gates,
    page_of_a_comparison,
    page_of_a_run,
    page_of_a_scenario,
    page_of_nothing,
    rollout,
)
from tests.loadtests.report_pages import (
    page as page_of,
)
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.search import Found, Outcome, Probe, Searched
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.mlperf.rules import Scenario
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.drawing import draw_intervals
from tpuserve_loadtests.rendering.scales import milliseconds
from tpuserve_loadtests.reports.compare import interval_chart
from tpuserve_loadtests.reports.figures import describe_origin
from tpuserve_loadtests.reports.rollout import rollout_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.reports.sweep import sweep_report
from tpuserve_loadtests.rollout.procedure import INTERRUPTED, Findings, Step, StepState
from tpuserve_loadtests.rollout.procedure import Outcome as Ended
from tpuserve_loadtests.rollout.replicas import ReplicaState
from tpuserve_loadtests.statistics.comparison import Comparison, Figure, Ratio, Verdict


class Text(HTMLParser):
    """The visible text of a page, and the elements that contain it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def __str__(self) -> str:
        return " ".join(self.words)


def verdict(page: str) -> str:
    found = re.search(r'<section class="verdict (\w+)"><strong>(.*?)</strong>', page)
    assert found is not None
    return f"{found[1]}: {html.unescape(found[2])}"


def run(median_ms: float = 4, **more: object) -> Measured:
    return recorded_run(open_load(300), median_ms, **more)  # type: ignore[arg-type]  # as recorded_run's


def overloaded(measured: Measured) -> Measured:
    return Measured(measured.load, measured.recorder, measured.span_s, (0.97,), measured.stopped, measured.started_at)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_date_and_time_with_zone_version_and_command(name: str) -> None:
    text = str(Text(PAGES[name]()))
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC .* tpuserve-loadtests \d", text)
    assert SETTINGS["Command"] in text


def test_a_page_of_no_load_has_the_time_it_was_written() -> None:
    written = datetime.strptime(describe_origin([])[:23], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=5)


def test_a_search_that_one_user_ended_shows_that_user_and_no_tries_of_nothing() -> None:
    text = str(Text(PAGES["search ended"]()))
    assert "trials none the first load was a single user" in text
    assert "p99 of a single user" in text


def test_ratios_beyond_the_chart_have_a_mark_at_the_edge_and_their_numbers() -> None:
    ratios = {"p50": (13.0, 12.0, 14.0), "p99": (26.0, 20.0, 30.0)}
    figures = tuple(
        Figure(name, Ratio(1.0, ratio, ratio, low, high), Verdict.WORSE, scarce=False)
        for name, (ratio, low, high) in ratios.items()
    )
    page = str(draw_intervals(interval_chart(Comparison(figures, 0.05))))
    assert page.count('class="interval-beyond worse"') == 2
    for text in ("13.000 worse →", "26.000 worse →"):
        assert text in page


def arrows(page: str) -> list[str]:
    """Return the direction of each arrow of the interval chart, from top to bottom."""
    points = [
        [float(point.split(",")[0]) for point in found.split()]
        for found in re.findall(r'<polygon points="(.*?)"', page)
    ]
    return ["left" if tip < back else "right" for tip, back, _ in points]


def test_an_interval_that_leaves_the_chart_ends_in_an_arrow_on_that_side() -> None:
    page = PAGES["wild"]()
    # The upper ends of p50 and p999 exceed the chart, and so does the whole interval of rate: its mark is hollow.
    assert arrows(page) == ["right", "right", "right"]
    assert page.count('class="interval-dot unclear"') == 3 + 3
    assert page.count('class="interval-beyond unclear"') == 1
    assert "7.500 unclear →" in page
    assert "A hollow mark at the edge stands for a ratio beyond the chart" in page
    assert "An arrow marks an interval that continues beyond the chart" in page
    low = Figure("p99", Ratio(1.0, 0.5, 0.5, 0.01, 0.9), Verdict.BETTER, scarce=False)
    assert arrows(str(draw_intervals(interval_chart(Comparison((low,), 0.05))))) == ["left"]
    assert arrows(PAGES["compare"]()) == []
    assert "An arrow marks" not in PAGES["compare"]()


@pytest.mark.parametrize("name", PAGES)
def test_what_servers_and_people_write_stays_text(name: str) -> None:
    page = PAGES[name]()
    tags = Text(page).tags
    assert tags.count("script") == 1
    assert "img" not in tags


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_found_ones_way_in_by_ear(name: str) -> None:
    page = PAGES[name]()
    assert '<html lang="en">' in page
    levels = [int(tag[1]) for tag in Text(page).tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))
    anchors = re.findall(r' id="([^"]*)"', page)
    assert len(anchors) == len(set(anchors))
    # Each region that the keyboard can scroll has a label.
    assert page.count('tabindex="0"') == len(
        re.findall(r'tabindex="0" role="region" aria-label="Numbers of [^"]', page)
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_small_file_that_asks_nobody(name: str) -> None:
    page = PAGES[name]()
    assert len(page) < 200_000
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "@import" not in page
    assert "default-src 'none'" in html.unescape(page)


def test_hostile_text_is_shown_as_it_is() -> None:
    assert HOSTILE in str(Text(page_of_a_run()))


@pytest.mark.parametrize(
    ("measured", "texts", "strict", "expected"),
    [
        (run(), (), True, "good: All requests succeeded"),
        (run(), ("p99>1s", "rate<5"), True, "good: Passed all 2 gates"),
        (
            replace(run(), load=Load(8, users=2)),
            ("p99>1s",),
            True,
            "good: Passed the gate (closed load of 2 users: hides stalls)",
        ),
        (run(), ("p99>1ms",), True, "bad: Failed the gate"),
        (run(failures={"gone": 3}), (), True, "bad: Failed: 3 of 2,403 requests"),
        (run(wrong=2), (), True, "bad: Wrong: 2 of 2,400 compared responses"),
        (overloaded(run()), ("p99>1ms",), True, "warn: Inconclusive: the load generator was the limit"),
        (overloaded(run()), ("p99>1s",), False, "warn: Passed the gate, but the load generator was the limit"),
    ],
)
def test_the_verdict_comes_first_and_in_words(
    measured: Measured, texts: tuple[str, ...], strict: bool, expected: str
) -> None:
    assert verdict(page_of_a_run(measured, *texts, strict=strict)) == expected


def test_nothing_measured_is_said_and_nothing_is_drawn() -> None:
    page = page_of_nothing()
    assert verdict(page) == "warn: Interrupted after 0 of 10 s"
    assert "<figure" not in page


def test_a_run_that_was_stopped_says_where() -> None:
    text = str(Text(page_of_a_run(run(seconds=3.0))))
    assert "Interrupted after 3 of 8 s" in text
    assert text.count("stopped") >= 2  # both charts over time


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("nothing", "plan", "refusal", "search ended")])
def test_every_chart_has_its_numbers_as_text(name: str) -> None:
    page = PAGES[name]()
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert figures
    for figure in figures:
        numbers = re.search(r"<details>.*<tbody>(.*)</tbody>", figure, re.DOTALL)
        # Intervals appear next to their bars.
        assert len(re.findall("<td", numbers[1] if numbers else "")) > 3 or "B / A" in figure
        assert re.search(r'role="img" aria-label="[^"]{20,}"', figure)


def test_the_server_says_where_the_time_went() -> None:
    page = PAGES["watched"]()
    for mean_ms in ("0.50", "2.40"):
        assert re.search(rf'<td data-what="mean ms">{mean_ms}</td>', page)
    text = str(Text(page))
    for part in ("queue wait", "execution, with stacking and padding", "batches of 3.2 rows"):
        assert part in text
    assert f"refused or dropped: 3 {HOSTILE}" in text
    assert "Queue and device" in text


def test_a_server_that_does_not_tell_is_no_part_of_the_verdict() -> None:
    report = judge_run(
        run(), model="m", rows=1, seen=Seen(note="the time breakdown needs metrics; set --server-metrics")
    )
    page = page_of(run_report(report, {}))
    assert "needs metrics" not in page[page.index('class="verdict') : page.index('class="tiles"')]
    assert "The time breakdown needs metrics; set --server-metrics" in str(Text(page))


def test_the_percentiles_of_the_page_are_those_of_the_report() -> None:
    measured = run(median_ms=40)
    text = str(Text(page_of_a_run(measured)))
    for percent in (50, 99):
        assert milliseconds(measured.total.percentile_ms(percent)) in text


@pytest.mark.parametrize(
    ("slower", "expected"), [(1.3, "bad: B is worse"), (0.7, "good: B is better"), (1.0, "good: B is the same as A")]
)
def test_a_comparison_says_which_is_better(slower: float, expected: str) -> None:
    assert verdict(page_of_a_comparison(slower)) == expected


def test_a_sweep_draws_where_the_time_went_at_each_load() -> None:
    text = str(Text(PAGES["sweep"]()))
    assert "Server by load" in text
    for title in ("Time breakdown by load", "Mean time by part", "Rows per batch"):
        assert title in text
    quiet = page_of(sweep_report([judge_run(run(), model="m", rows=1)], {}))
    assert "Server by load" not in str(Text(quiet))


def test_a_comparison_and_a_search_have_a_row_of_the_servers_for_each() -> None:
    compared, searched = (str(Text(PAGES[name]())) for name in ("compare", "search"))
    assert "execution +1.00" in compared
    assert "B compared with A: mean latency +" in compared
    assert "309.0/s holds" in searched
    assert "336.0/s fails" in searched
    assert "336.0/s compared with 100 requests/s, constant: mean latency +" in searched


def test_a_soak_says_what_drifts() -> None:
    page = PAGES["soak"]()
    assert verdict(page) == "bad: Drifting: server's memory"
    assert "24 of 25" in str(Text(page))
    assert "565.0 MiB" not in str(Text(page))


def test_a_page_of_mlperfs_rules_says_what_it_is_not_before_anything_else() -> None:
    page = page_of_a_scenario()
    assert page.index("not verified by MLCommons Association.") < page.index('class="verdict')
    assert "not verified" in page[: page.index("<style")]  # in the tab's title too


def test_a_page_of_mlperfs_rules_says_where_the_time_went_in_the_run_and_while_a_rate_was_searched_for() -> None:
    text = str(Text(page_of_a_scenario()))
    assert text.count("Time breakdown") == 2
    assert "300.0/s holds" in text
    assert "400.0/s compared with" in text
    assert str(Text(page_of_a_scenario(Scenario.OFFLINE))).count("Time breakdown") == 1


@pytest.mark.parametrize(
    ("scenario", "seconds", "failures", "expected"),
    [
        (Scenario.OFFLINE, 600, 0, "good: VALID by the rules"),
        (Scenario.SERVER, 20, 0, "warn: INVALID: too short for the rules; all other rules are kept"),
        (Scenario.SINGLE_STREAM, 8, 2, "bad: INVALID: 2 of 5 rules violated"),
    ],
)
def test_mlperfs_rules_are_kept_or_not(scenario: Scenario, seconds: float, failures: int, expected: str) -> None:
    page = page_of_a_scenario(scenario, seconds, failures)
    assert verdict(page) == expected
    text = str(Text(page))
    assert f"{seconds:.1f} s" in text  # measured
    assert "600 s" in text  # required


@pytest.mark.parametrize(
    ("outcome", "exit_code", "expected"),
    [
        (Ended.PROMOTED, 0, "good: Version 4 is live"),
        (Ended.PLANNED, 0, "plan: Plan: nothing was changed"),
        (Ended.REFUSED, 99, "bad: Version 4 was refused: version 3 is live, and no label was moved"),
        (Ended.REFUSED, 98, "warn: Version 4 was refused: version 3 is live, and no label was moved"),
        (Ended.REFUSED, 97, "warn: Version 4 was refused: version 3 is live, and no label was moved"),
        (Ended.REFUSED, 1, "bad: Version 4 was refused: version 3 is live, and no label was moved"),
        (Ended.MOVED_BACK, 99, "bad: The labels were moved back: version 3 is live again"),
        (Ended.SERVER_GONE, 3, "bad: The server does not respond: the file has version 3 again"),
        (Ended.STUCK, 1, "bad: The labels could not be moved back"),
    ],
)
def test_a_rollout_says_what_is_live(outcome: Ended, exit_code: int, expected: str) -> None:
    page = page_of(rollout_report(rollout(outcome, exit_code, [], Findings()), [], {}))
    assert verdict(page) == expected
    assert ("Plan of a rollout" in page) == (outcome is Ended.PLANNED)


def test_a_rollout_counts_the_replicas_that_do_not_respond() -> None:
    states = [ReplicaState("a:1", "", {"stable": 3}), ReplicaState("b:1", problem="refused", lacks="does not respond")]
    ended = replace(rollout(Ended.SERVER_GONE, 3, [], Findings()), replicas=states)
    assert "1 OF 2 REPLICAS DOES NOT RESPOND. " in ended.statement
    page = page_of(rollout_report(ended, [], {}))
    assert verdict(page) == "bad: 1 of 2 replicas does not respond: the file has version 3 again"


def test_an_interrupted_rollout_blames_nobody() -> None:
    steps = [Step(INTERRUPTED, StepState.FAILED, "by a signal", 0, 1)]
    page = page_of(rollout_report(rollout(Ended.REFUSED, 130, steps, Findings()), [], {}))
    assert verdict(page) == "warn: Interrupted: version 3 is live, and no label was moved"


def test_a_rollout_tells_what_was_let_pass() -> None:
    found = replace(comparison(1.0), limits=("a core was full",), strict=False)
    page = page_of(rollout_report(rollout(Ended.PROMOTED, 0, [], Findings(comparison=found)), [], {}))
    assert verdict(page) == "good: Version 4 is live"
    assert "shadow: the load generator was the limit (accepted by --generator-limit)" in str(Text(page))


def test_a_rollout_shows_each_step_with_its_time_and_what_its_gates_found() -> None:
    page = PAGES["rollout"]()
    text = str(Text(page))
    for part in (
        "22:15:30",
        "5 min",
        "drifting: server's memory",
        "Ratio of B to A",
        "Memory",
        "Parity",
        "A over gRPC",
        "Canary: ",
        "0.97",
        "better",
    ):
        assert part in text
    for anchor in re.findall(r'href="#(\w+)"', page):
        assert f'id="{anchor}"' in page


def test_a_search_says_what_it_found_and_what_did_not_hold() -> None:
    text = str(Text(PAGES["search"]()))
    assert "309.0/s holds" in text
    assert "336.0/s does not hold" in text
    assert "p99<=20ms: 3 of 2,472 late" in text


@pytest.mark.parametrize(
    ("found", "expected"), [(None, "warn: The search stopped early"), (Found(None, None), "bad: No rate holds")]
)
def test_a_search_without_an_answer_has_a_page_too(found: Found | None, expected: str) -> None:
    tries = [(Probe(100, Outcome.FAILS, "p99<=1ms: 90 of 100 late"), Watched.of(run(), Seen()))] if found else []
    searched = Searched(found, tries, problem="interrupted")
    page = page_of(search_report("digits", searched, gates("p99<=1ms"), {}))
    assert verdict(page) == expected
