"""What the page remembers of a backlog, and how it draws it."""

from typing import Any

from tests.script.modules import Modules


def samples(*values: tuple[float, float]) -> list[dict[str, float]]:
    return [{"at": at, "value": value} for at, value in values]


def extended(modules: Modules, *observed: tuple[float, float]) -> Any:
    series: Any = []
    for sample in samples(*observed):
        series = modules.call("history", "extended", series, sample)
    return series


def test_a_snapshot_that_is_shown_twice_counts_once(modules: Modules) -> None:
    assert extended(modules, (0, 1), (5, 2), (5, 3)) == samples((0, 1), (5, 3))


def test_only_the_last_quarter_of_an_hour_is_remembered(modules: Modules) -> None:
    series = extended(modules, *((5 * n, n) for n in range(400)))
    assert (len(series), series[-1]["at"] - series[0]["at"]) == (181, 900)


def test_many_pages_of_one_browser_do_not_make_a_series_longer(modules: Modules) -> None:
    assert len(extended(modules, *((n, n) for n in range(400)))) == 181


def test_a_clock_that_ran_backwards_begins_a_new_series(modules: Modules) -> None:
    assert extended(modules, (100, 1), (105, 2), (40, 3)) == samples((40, 3))


def test_the_series_that_was_not_updated_for_the_longest_time_is_forgotten(modules: Modules) -> None:
    kept = modules.evaluate(
        """(() => {
          const { History, SERIES } = require("./history.js");
          const history = new History();
          for (let n = 0; n <= SERIES; n += 1) {
            history.record("always", { at: n, value: n });
            history.record(`consumer ${n}`, { at: n, value: n });
          }
          return ["always", "consumer 0", "consumer 1", "consumer 2"].map((name) => history.of(name).length > 0);
        })()"""
    )
    assert kept == [True, False, False, True]


def points(modules: Modules, series: list[dict[str, float]]) -> list[tuple[float, float]]:
    drawn = modules.call("plot", "points", series, 120, 28)
    return [(float(x), float(y)) for x, y in (point.split(",") for point in drawn.split())]


def test_the_line_grows_from_the_left_and_stays_within_the_picture(modules: Modules) -> None:
    assert points(modules, samples((0, 10), (60, 20))) == [(2, 26), (60, 2)]
    assert points(modules, samples((0, 10), (60, 20), (240, 15))) == [(2, 26), (31, 2), (118, 14)]


def test_a_constant_backlog_is_a_line_in_the_middle(modules: Modules) -> None:
    assert points(modules, samples((0, 7), (120, 7))) == [(2, 14), (118, 14)]
    assert modules.call("plot", "points", [], 120, 28) == ""


def test_the_plot_is_described_in_words(modules: Modules) -> None:
    described = [
        modules.call("plot", "described", series)
        for series in ([], samples((0, 7)), samples((0, 7), (60, 7)), samples((0, 2_000), (60, 2_500), (120, 2_482)))
    ]
    assert described == [
        "Nothing observed yet",
        "Backlog: 7 now",
        "Backlog: 7 now, ±0 in 1 min",
        "Backlog: 2,482 now, +482 in 2 min, between 2,000 and 2,500",
    ]


def test_a_line_is_drawn_only_for_a_backlog_that_has_changed(modules: Modules) -> None:
    for values, drawn in (((), False), ((5,), False), ((5, 5, 5), False), ((5, 5, 6), True)):
        series = samples(*((5 * number, value) for number, value in enumerate(values)))
        assert modules.call("plot", "changed", series) is drawn
