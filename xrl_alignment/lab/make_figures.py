"""Makes the README's figures from a run: an animated episode, the learning curve, the training loop, badges.

    python -m xrl_alignment.make_figures RUN_DIR --checkpoint RUN_DIR/…/emma_checkpoint_5.pth --game 7 [--out docs]

RUN_DIR is a run directory or a folder that holds some (`output/demo`); the curve shows all of them. The episode is
played by the checkpoint's policy beside the explorer, on generated held-out games; --env, --split, --cfg-path and
--options are those of `xrl_alignment.show.play`. The README's episode is the shipped student's:

    python -m xrl_alignment.make_figures output/demo --cfg-path configs/evaluate/student.yaml \\
        --env native --split valid_seen --game heat
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import closing
from html import escape
from pathlib import Path

from lavis.common.errors import MissingFileError
from lavis.common.paths import REPO_ROOT
from lavis.common.program import read_first, run_program
from xrl_alignment.show.report.run_data import find_runs


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, and `runs`: what lies in its folder. MissingFileError if there is no run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run_dir", type=Path, help="a run directory, or a folder that holds some")
    add("--checkpoint", type=Path, help="the policy of the episode")
    add("--game", default="", help="number of the game, or a part of its name")
    add("--env", default="household")
    add("--split", default="")
    add("--cfg-path", type=Path, metavar="FILE", help="settings of the policy, if the checkpoint has none")
    add("--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    add("--out", type=Path, default=REPO_ROOT / "docs", help="folder for the figures (default: docs)")
    arguments = parser.parse_args(argv)
    arguments.runs = find_runs(arguments.run_dir) if arguments.run_dir.is_dir() else {}
    if not arguments.runs:
        raise MissingFileError(f"no run in {arguments.run_dir}: a run directory holds a folder `state`")
    return arguments


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

from matplotlib.figure import Figure

from lavis.common.files import make_folder, write_bytes
from xrl_alignment.show.play.game import POLICY
from xrl_alignment.show.play.recording import write_recording
from xrl_alignment.show.play.settings import choose_game, set_up
from xrl_alignment.show.play.terminal import summary_line
from xrl_alignment.show.report.charts import solved_so_far, svg

# Boxes of the loop: text, centre, width; arrows: from, to, text, where it stands.
_BOXES = {
    "environment": ("environment\n(client)", 1.1, 2.1),
    "policy": ("policy:\nits action", 5.0, 3.0),
    "expert": ("expert:\nits label", 5.0, 1.2),
    "learner": ("learner: BC,\nthen DPO", 8.6, 2.1),
}
_ARROWS = (
    ("environment", "policy", "text, image", 0.25),
    ("environment", "expert", "text", -0.3),
    ("policy", "learner", "rejected (DPO)", 0.3),
    ("expert", "learner", "label: chosen", -0.35),
)
# Bows back to the environment and the policy: from, to, text, where it stands.
_BOWS = (
    ((5.0, 3.55), (1.1, 2.65), "the policy's action is executed", (2.6, 4.1)),
    ((8.6, 2.65), (5.6, 3.4), "new weights", (7.6, 3.75)),
)


def loop_figure() -> bytes:
    """The training loop as SVG: who observes, acts, labels and learns."""
    figure = Figure(figsize=(7.6, 3.4), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(0, 4.5))
    axes.axis("off")
    # Boxes, straight arrows between them, two bows back to the environment and the policy.
    for text, x, y in _BOXES.values():
        style = {"boxstyle": "round,pad=0.6", "facecolor": "#e8f0fa", "edgecolor": "#0b5cad"}
        axes.text(x, y, text, ha="center", va="center", fontsize=11, bbox=style)
    for start, end, text, above in _ARROWS:
        (_, x0, y0), (_, x1, y1) = _BOXES[start], _BOXES[end]
        # Arrows run from middle to middle and are shortened at both ends, in points, so that they stay outside the
        # boxes.
        line = {"arrowstyle": "-|>", "color": "#444444", "shrinkA": 48, "shrinkB": 46}
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=line)
        axes.text((x0 + x1) / 2, (y0 + y1) / 2 + above, text, ha="center", va="center", fontsize=9, color="#444444")
    for tail, head, said, place in _BOWS:
        bow = {"arrowstyle": "-|>", "color": "#0b5cad", "connectionstyle": "arc3,rad=0.25"}
        axes.annotate("", head, tail, arrowprops=bow)
        axes.text(*place, said, ha="center", fontsize=9, color="#0b5cad")
    axes.text(5.0, 0.25, "between rounds: a memory of each failed game", ha="center", fontsize=9, color="#444444")
    return svg(figure)


def badge(label: str, value: str) -> bytes:
    """A small sign with two texts as SVG, for readers without a network, too."""
    # Widths in pixels: 6.6 for a letter of Verdana at 11 points, 7 at either side.
    left, right = (round(6.6 * len(text)) + 14 for text in (label, value))
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(value)}">'
        f'<rect width="{left + right}" height="20" rx="3" fill="#0b5cad"/>'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#555"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14">{escape(label)}</text>'
        f'<text x="{left + right / 2:g}" y="14">{escape(value)}</text></g></svg>'
    )
    return text.encode()


def badges() -> dict[str, bytes]:
    """The README's badges by file name: what pyproject.toml says of this version."""
    text = (REPO_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    said = dict(re.findall(r'^(version|requires-python|license) = "([^"]+)"', text, re.MULTILINE))
    python = said["requires-python"].replace(">=", "≥ ")
    parts = {"version": said["version"], "python": python, "licence": said["license"]}
    return {f"badge-{label}.svg": badge(label, value) for label, value in parts.items()}


def make_figures(
    runs: dict[str, Path],
    out: Path,
    *,
    checkpoint: Path | None,
    game: str = "",
    environment: str = "household",
    split: str = "",
    cfg_path: Path | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """Write `episode.gif`, `learning_curve.svg`, `loop.svg` and the badges into `out`; returns a line for each."""
    figures = {**badges(), "learning_curve.svg": svg(solved_so_far(runs, (7.6, 3.2))), "loop.svg": loop_figure()}
    parts = set_up(environment=environment, split=split, checkpoint=checkpoint, cfg_path=cfg_path, options=options)
    with closing(parts) as setup:
        number = choose_game(setup.games, game, seed=0)
        playing = setup.new_game(number)
        while not playing.over:
            playing.play(POLICY)
        make_folder(out)  # only now: without a policy nothing is written
        for name, content in figures.items():
            write_bytes(out / name, content)
        lines = [f"{out / name}" for name in figures]
        path = write_recording(out / "episode.gif", playing)
    return [*lines, f"{path}: {path.stat().st_size / 1e6:.1f} MB, game {number}, {summary_line(playing)}"]


def main(argv: Sequence[str] | None = None) -> None:
    """Make them, and say what was made from what."""
    arguments = parse_arguments(argv)
    lines = make_figures(
        arguments.runs,
        arguments.out,
        checkpoint=arguments.checkpoint,
        game=arguments.game,
        environment=arguments.env,
        split=arguments.split,
        cfg_path=arguments.cfg_path,
        options=arguments.options,
    )
    print("\n".join(lines))


if __name__ == "__main__":
    run_program(main)
