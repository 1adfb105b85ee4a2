"""What was trained and what came out, in a few sentences: the page's first paragraph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xrl_alignment.show.report.episodes import read_episodes, single_trials
from xrl_alignment.show.report.run_data import parsed_settings, played
from xrl_alignment.show.report.tables import between


def lead(runs: Mapping[str, Path], evaluations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each run, then one for its evaluations; a run without episodes has none."""
    sentences = [sentence for name, path in runs.items() if (sentence := _of_run(name, path))]
    scores = []
    for name, entry in evaluations.items():
        # Free text if it was played so; random play has a success among the admissible commands alone.
        free, admissible = entry.get("success"), entry.get("success_admissible")
        kind = ("", "interval") if free is not None else (" among the admissible commands", "interval_admissible")
        value = free if free is not None else admissible
        if isinstance(value, float):
            interval = entry.get(kind[1])
            score = f"{name} {value:.2f}{kind[0]}"
            scores.append(score + (f" ({between(interval)})" if interval else ""))
    if scores:
        sentences.append(f"Success in evaluations, of games that are each played once: {'; '.join(scores)}.")
    return sentences


def _of_run(name: str, run: Path) -> str:
    episodes = read_episodes(run)
    if not episodes:
        return ""
    # A run of another version may lack its settings, or have some that nobody can read.
    path = run / "config.yaml"
    section = (parsed_settings(path.read_text("utf-8", "replace")) if path.exists() else {}).get("run")
    settings = section if isinstance(section, dict) else {}
    if settings.get("run_training") is False:
        what = "a policy played without training"
    elif "enable_dpo" in settings:
        what = "trained by DPO" if settings["enable_dpo"] else "trained by behavioural cloning (BC)"
    else:
        what = "a run"
    rounds = 1 + max(episode.round for episode in episodes)
    games = {episode.game for episode in episodes}
    where = f" of {', '.join(engines)}" if (engines := played(run)[:-1]) else ""
    games_played = f"{len(games)} {'game' if len(games) == 1 else 'games'}{where}"
    amount = f"{games_played}, {len(episodes)} episodes in {rounds} {'round' if rounds == 1 else 'rounds'}"
    solved = {episode.game for episode in episodes if episode.solved}
    if all(trial.driven for trial in single_trials(episodes)):
        outcome = "the expert drove, so only an evaluation says what the policy has learned"
    else:
        outcome = f"the policy alone solved {len(solved)} of these games"
    unfinished = "" if (run / "DONE").exists() else " so far (the run has not ended)"
    return f"{name}: {what}; {amount}{unfinished}; {outcome}."
