"""The counts as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.across.kills import Counts

START, END = "<!-- counts -->\n", "<!-- end of counts -->\n"
_COLORS = {"light": ("#1f2328", "#c2410c", "#7c3aed"), "dark": ("#e6edf3", "#fb923c", "#a78bfa")}
"""Text, lost, duplicated."""
_TITLES = {"order": "Order and message", "outbox": "Outbox", "sink": "Sink"}


def table(found: Counts) -> str:
    """Return the counts as a Markdown table, a row for each contender and place."""
    lines = [
        "| Program | Place of the kill | Kills | Lost | Duplicated |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {_TITLES[kind]}: {contender} | {place} | {count.kills} | {count.lost} "
        f"| {count.duplicated} |"
        for kind, contenders in found.items()
        for contender, places in contenders.items()
        for place, count in places.items()
    ]
    return "\n".join(lines) + "\n"


def write_table(found: Counts, page: Path) -> None:
    """Replace the table of a page."""
    text = page.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    page.write_text(before + START + "\n" + table(found) + "\n" + END + after)


def draw(found: Counts, folder: Path) -> None:
    """Write `kills-light.svg` and `kills-dark.svg`."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    bars = [
        (
            f"{_TITLES[kind]}\n{contender}", sum(one.kills for one in places.values()),
            sum(one.lost for one in places.values()), sum(one.duplicated for one in places.values()),
        )
        for kind, contenders in found.items()
        for contender, places in contenders.items()
    ]  # fmt: skip
    for mode, (ink, lost, duplicated) in _COLORS.items():
        style = {
            "svg.hashsalt": "kills", "svg.fonttype": "none", "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "text.color": ink,
            "axes.labelcolor": ink, "axes.edgecolor": ink, "xtick.color": ink, "ytick.color": ink,
        }  # fmt: skip
        with pyplot.rc_context(style):
            figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
            heights = range(len(bars))
            for column, what, color in ((2, "lost", lost), (3, "duplicated", duplicated)):
                there = [height for height in heights if bars[height][column]]
                widths = [bars[height][column] for height in there]
                starts = [bars[height][2] if column == 3 else 0 for height in there]
                axes.barh(there, widths, left=starts, color=color, label=what)
            for height, bar in zip(heights, bars, strict=True):
                count = bar[2] + bar[3]
                axes.annotate(
                    f"{count} after {bar[1]} kills", (count, height), xytext=(4, 0),
                    textcoords="offset points", va="center",
                )  # fmt: skip
            axes.set_yticks(heights, [bar[0] for bar in bars])
            axes.set_ylim(len(bars) - 0.5, -0.5)
            axes.margins(x=0.24)
            axes.set_xlabel("messages or rows that are lost or duplicated")
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, loc="upper right")
            figure.savefig(
                folder / f"kills-{mode}.svg",
                transparent=True,
                metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
            )
            pyplot.close(figure)
