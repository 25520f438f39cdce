"""The picture of `eoslog bench`: rates and latencies, with the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eoslog.commands.bench.work import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS = (1200, 720)
DPI = 100
_OURS, _LIMIT = "#2a6f97", "#a9a9a9"


def draw(figures: Sequence[Figure], title: str, path: str | Path) -> None:
    """Draw a PNG of 1200 pixels' width.

    Args:
        figures: rates and latencies, limits among them.
        title: the first line.
        path: the file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    rates = [figure for figure in figures if not figure.latency]
    latencies = [figure for figure in figures if figure.latency]
    picture, (above, below) = pyplot.subplots(
        2, 1, figsize=(PIXELS[0] / DPI, PIXELS[1] / DPI), dpi=DPI,
        height_ratios=(len(rates) + 1, len(latencies) + 1),
    )  # fmt: skip
    _bars(above, rates, lambda figure: figure.per_second, rate_text)
    above.set_xlabel("records a second (logarithmic; longer is better)", fontsize=12)
    _bars(below, latencies, lambda figure: figure.median * 1e6, time_text)
    below.set_xlabel("microseconds, the middle one (logarithmic; shorter is better)", fontsize=12)
    above.set_title(title, fontsize=14)
    above.legend(
        handles=[Patch(color=_OURS, label="eoslog"), Patch(color=_LIMIT, label="this machine")],
        loc="lower right",
        fontsize=11,
    )
    picture.tight_layout()
    picture.savefig(path, dpi=DPI)
    pyplot.close(picture)


def _bars(
    axes: Axes,
    figures: Sequence[Figure],
    value: Callable[[Figure], float],
    text: Callable[[Figure], str],
) -> None:
    numbers = [value(figure) for figure in figures]
    colours = [_LIMIT if figure.limit else _OURS for figure in figures]
    places: Any = range(len(figures))
    axes.barh(places, numbers, color=colours, height=0.7)
    axes.set_yticks(places, [figure.what for figure in figures], fontsize=12)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(numbers) / 4, max(numbers) * 6)
    for place, figure, number in zip(places, figures, numbers, strict=True):
        axes.text(number * 1.06, place, text(figure), va="center", fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)


def rate_text(figure: Figure) -> str:
    """A rate, to be read."""
    rate = figure.per_second
    if rate >= 1e6:
        return f"{rate / 1e6:.3g} million"
    return f"{rate:,.0f}"


def time_text(figure: Figure) -> str:
    """A latency, to be read."""
    took = figure.median * 1e6
    return f"{took / 1000:.3g} ms" if took >= 1000 else f"{took:.0f} µs"
