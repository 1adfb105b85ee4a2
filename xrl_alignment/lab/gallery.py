"""Ten episodes as small HTML recordings, and the page that links them: docs/gallery.md (`make gallery`).

    python -m xrl_alignment.lab.gallery [--out docs]

It needs no official games and no training: the explorer and the shipped students play generated games. An entry that
wants an outcome takes the first game of its split that ends so, and the page says it.

Tree of `--out`: `gallery.md`, and `gallery/<name>.html` for each episode.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alfworld_native.language.commands import is_thought
from alfworld_native.language.sentences import task_sentence
from lavis.common.errors import EmacError
from lavis.common.files import make_folder, write_bytes, write_text
from lavis.common.paths import REPO_ROOT
from lavis.common.program import run_program
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.play.rollouts.episode import STUCK_AFTER
from xrl_alignment.show.play.game import EXPERT, POLICY, GameInProgress
from xrl_alignment.show.play.recording import recording_page
from xrl_alignment.show.play.settings import set_up
from xrl_alignment.show.report.failures import CAUSES, cause

MOST_STEPS = 24  # commands of an episode of the gallery: a longer one is cut, and counts as failed
MOST_GAMES = 30  # that are played until one ends as wanted
LABELS = ("environment.tell_objects=false", "environment.show_ids=true")
LOOKS, STUDENT = "configs/evaluate/looks.yaml", "configs/evaluate/student.yaml"


@dataclass(frozen=True)
class Entry:
    """An episode of the gallery: its file, what it shows, who plays which split, and how it has to end.

    `won` is None if any end will do. `type` is a part of the game's id.
    """

    name: str
    shows: str
    split: str = "household_heldout"
    cfg_path: str = ""  # of the policy that plays; "": the explorer does
    options: tuple[str, ...] = ()
    type: str = ""
    won: bool | None = None


ENTRIES = (
    Entry("expert_heat", "the explorer, which reads text only, heats a thing", type="pick_heat"),
    Entry("expert_two", "the explorer brings two things of a kind", type="pick_two"),
    Entry("student_clean", "the shipped student, with text and frames", cfg_path=STUDENT, type="pick_clean", won=True),
    Entry("student_lamp", "the same student looks at a thing under a lamp", cfg_path=STUDENT, type="look_at", won=True),
    Entry(
        "frames", "setting (b): only the frame tells what lies where", cfg_path=STUDENT, options=LABELS, type="pick_two"
    ),
    Entry("looks", "setting (d): the student recognises what no label and no text names", cfg_path=LOOKS, won=True),
    Entry("looks_failed", "setting (d): the student fails", cfg_path=LOOKS, won=False),
    Entry("house", "a house of several rooms (level `house`)", split="household_house"),
    Entry("compound", "a task of several goals (level `compound`)", split="household_compound"),
    Entry("notes", "the student notes what is left of several goals", "household_compound", STUDENT, won=True),
)


def play_entry(entry: Entry) -> tuple[int, GameInProgress]:
    """The number of the game (from 1) and its episode; EmacError if no game of the split ends as wanted."""
    player = POLICY if entry.cfg_path else EXPERT
    path = REPO_ROOT / entry.cfg_path if entry.cfg_path else None
    with closing(set_up(split=entry.split, cfg_path=path, options=entry.options)) as setup:
        # A number of the whole split, so that `--game` of the play command shows the same game.
        fitting = [number for number, game in enumerate(setup.games, 1) if entry.type in game.id]
        for number in fitting[:MOST_GAMES]:
            playing = setup.new_game(number)
            actions: list[str] = []
            # As in training and evaluation, an agent that repeats itself is stopped.
            while not playing.over and len(actions) < MOST_STEPS:
                if len(actions) >= STUCK_AFTER and len(set(actions[-STUCK_AFTER:])) == 1:
                    break
                playing.play(player)
                if not is_thought(playing.moves[-1].action):  # a note of what is seen is no command
                    actions.append(playing.moves[-1].action)
            if entry.won in (None, playing.won):
                return number, playing
    raise EmacError(f"{entry.name}: none of {len(fitting[:MOST_GAMES])} games of {entry.split} ends as wanted")


def ending(playing: GameInProgress) -> str:
    """How an episode ended; a failed one with its cause (`show.report.failures`)."""
    steps = sum(not is_thought(move.action) for move in playing.moves)
    if playing.won:
        return f"won in {steps} commands"
    # The second part of an id names the objects, joined by `_` if the game has several goals.
    if playing.game.id.split("-")[1].count("_"):
        return f"failed after {steps} commands"  # the causes are those of a task with one goal
    told = tuple((move.action, move.feedback) for move in playing.moves)
    game = playing.game.id
    why = cause(EpisodeTrace(game, game.split("-", 1)[0], playing.opening, told, False))
    return f"failed after {steps} commands: {why} ({CAUSES[why]})"


def write_gallery(out: Path, entries: Sequence[Entry] = ENTRIES) -> list[str]:
    """Play the `entries`, write their recordings and the page; returns a line for each file."""
    make_folder(out / "gallery")
    rows, lines = [], []
    for entry in entries:
        number, playing = play_entry(entry)
        path = out / "gallery" / f"{entry.name}.html"
        page = recording_page(playing, small=True).encode()
        write_bytes(path, page)
        task = task_sentence(playing.opening).removeprefix("Your task is to:").strip()
        chosen = {None: "", True: ", the first that it wins", False: ", the first that it fails"}[entry.won]
        game = f"`{entry.split}`, game {number}{chosen}"
        rows.append(f"| [{task}](gallery/{entry.name}.html) | {entry.shows} | {ending(playing)} | {game} |")
        lines.append(f"{path}: {len(page) / 1e3:.0f} kB, {ending(playing)}")
    write_text(out / "gallery.md", _PAGE.format(rows="\n".join(rows), count=len(rows), most=MOST_STEPS))
    return [*lines, str(out / "gallery.md")]


_PAGE = """# Gallery: episodes to look at

`make gallery` played these {count} episodes and wrote this page (`python -m xrl_alignment.lab.gallery`). Each link is
one HTML file that needs no network: slider, buttons, and the keys ← → Home End and space. Frames are small here;
[`--record`](play.md#recordings) writes sharp ones of any episode.

The games are generated, and nobody trained on these rooms. If an entry says "the first that it wins" or "fails", the
games before it ended otherwise, so the gallery shows what happens and not how often: that is in
[results.md](results.md) and [levels.md](levels.md). Grey sentences are not shown to the agent
([the four settings](information.md#four-settings)). An episode ends after {most} commands here at the latest, or after
the same command five times.

| task | what it shows | end | game |
| --- | --- | --- | --- |
{rows}

## EMMA's released logs

They hold text, no frames, and belong to EMMA's authors, so no episode of them is copied here. A report reads them:

```sh
python -m xrl_alignment.report LOGS    # the folder with world.log, trial_<n>.log, env_results_trial_<n>.json
```

`LOGS/report.html` counts success in each trial as the original does, by slot, and by game beside it, and why the
episodes failed ([report](report.md#the-originals-logs)). [The audit](audit.md) has these figures of two released runs.
"""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=REPO_ROOT / "docs", help="folder of the page (default: docs)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Play, write, print what was written."""
    print("\n".join(write_gallery(parse_arguments(argv).out)))


if __name__ == "__main__":
    run_program(main)
