"""The stages as bars, in an SVG that can be read on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.main_job.stages import Runs, Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#808080"  # the page shows through, so text and axes must contrast with white and with black
COLOURS = dict(
    zip(
        Stage,
        ("#b07aa1", "#4e79a7", "#59a14f", "#7d8fa9", "#9c755f", "#e15759", "#f28e2b", "#76b7b2"),
        strict=True,
    )
)
LONG = 3.0  # a job that takes this many times as long as the shortest has a separate axis


def draw(results: Mapping[str, Runs], path: Path) -> None:
    """Draw a bar for each result, whose parts are the stages. Long and short jobs have separate axes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shortest = min(runs.median for runs in results.values())
    long = {name: runs for name, runs in results.items() if runs.median > LONG * shortest}
    short = {name: runs for name, runs in results.items() if name not in long}
    groups = [group for group in (long, short) if group]
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "stages", "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 1.6 + 0.45 * len(results)), layout="constrained")
        heights = [len(group) for group in groups]
        for axes, group in zip(
            figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False).flat, groups, strict=True
        ):
            _bars(axes, group)
        shown = [stage for stage in Stage if any(stage in runs.stages for runs in results.values())]
        handles = [mpl.patches.Patch(color=COLOURS[stage], label=stage) for stage in shown]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _bars(axes: Axes, group: Mapping[str, Runs]) -> None:
    for name, runs in group.items():
        left = 0.0
        for stage, seconds in runs.stages.items():
            axes.barh(name, seconds, left=left, color=COLOURS[stage], height=0.6)
            left += seconds
        axes.annotate(f" {left:.1f} s", (left, name), va="center")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
