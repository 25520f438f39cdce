"""The picture: how late which airline arrives at which hour of the day."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.demo import dataset

if TYPE_CHECKING:
    import pandas as pd

PIXELS = (1200, 760)
DPI = 100


def draw(result: pd.DataFrame, path: str | Path) -> None:
    """Draw the mean arrival delay by carrier and hour as a PNG of 1200 pixels' width.

    Args:
        result: The records of `carrier_delays`.
        path: The file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import TwoSlopeNorm

    grid, flights = pivot(result)
    names = dataset.airline_names()
    figure, axes = pyplot.subplots(figsize=(PIXELS[0] / DPI, PIXELS[1] / DPI), dpi=DPI)
    norm = TwoSlopeNorm(vmin=-30, vcenter=0, vmax=60)
    image = axes.imshow(grid, cmap="RdBu_r", norm=norm, aspect="auto")
    for line in range(grid.shape[0]):
        for column in range(grid.shape[1]):
            mean = grid.iloc[line, column]
            if not math.isnan(mean):
                shade = "white" if mean > 35 or mean < -18 else "black"
                axes.text(
                    column,
                    line,
                    f"{round(mean)}",
                    ha="center",
                    va="center",
                    color=shade,
                    fontsize=9,
                )
    axes.set_xticks(range(grid.shape[1]), [f"{hour}" for hour in grid.columns], fontsize=10)
    axes.set_yticks(
        range(grid.shape[0]),
        [f"{names.get(code, code)} ({flights[code]:,})" for code in grid.index],
        fontsize=10,
    )
    axes.set_xlabel("scheduled hour of departure (local time, 24-hour clock)", fontsize=12)
    axes.set_ylabel("airline (flights arrived)", fontsize=12)
    axes.set_title(
        "Mean arrival delay of flights from New York, 2013, by airline and hour",
        fontsize=14,
    )
    figure.colorbar(image, ax=axes, extend="both", pad=0.015).set_label(
        "mean arrival delay (minutes; blue = early)", fontsize=12
    )
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)


def pivot(result: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return mean arrival delays by carrier and hour, and flights by carrier.

    The carriers with the greatest mean delay come first.
    """
    frame = result.astype({"flights": "float", "arr_delay": "float", "hour": "int"})
    frame = frame.assign(mean=frame["arr_delay"] / frame["flights"])
    grid = frame.pivot(index="carrier", columns="hour", values="mean")
    totals = frame.groupby("carrier")[["arr_delay", "flights"]].sum()
    order = (totals["arr_delay"] / totals["flights"]).sort_values(ascending=False).index
    return grid.loc[order], {code: int(totals.loc[code, "flights"]) for code in order}
