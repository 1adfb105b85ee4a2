"""The dataset card of a collection (Markdown): counts, success by task type, settings, versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from xrl_alignment.common.intervals import wilson_interval
from xrl_alignment.common.versions import versions
from xrl_alignment.play.collection.plan import Collected, Plan
from xrl_alignment.settings.schema import EnvironmentConfig


def card(plan: Plan, episodes: Sequence[Collected]) -> str:
    """The dataset card (Markdown): counts and success by task type, settings, versions."""
    shows = EnvironmentConfig(
        name=plan.env,
        tell_objects=plan.tell_objects,
        name_by=plan.name_by,
        show_ids=plan.show_ids,
        camera=plan.camera,
        blank_frames=plan.blank_frames,
    ).shows
    if not plan.frames:
        shows += " (frames are not stored)"
    # One row for each task type, in the order of their names, and one for all games together.
    rows = []
    for kind in [*sorted({episode.task_type for episode in episodes}), "all"]:
        group = [episode for episode in episodes if kind in (episode.task_type, "all")]
        won = [episode for episode in group if episode.won]
        low, high = wilson_interval(len(won), len(group))
        rate, steps = len(won) / len(group) if group else 0.0, "-"
        if won:
            steps = f"{sum(episode.steps for episode in won) / len(won):.1f}"
        stored = sum(episode.stored for episode in group)
        rows.append(
            f"| {kind} | {len(group)} | {len(won)} | {rate:.3f} | {low:.3f} to {high:.3f} | {steps} | {stored} |"
        )
    lines = [
        f"# {plan.split}: {plan.expert} on {plan.env}",
        "",
        f"{sum(e.stored for e in episodes)} transitions of {sum(e.stored > 0 for e in episodes)} episodes"
        f"{'' if plan.keep_failed else ' (solved ones only)'}; {'frames' if plan.frames else 'no frames'}, "
        f"format `{plan.format}`. Made with `python -m xrl_alignment.collect`.",
        "",
        f"What the agent gets: {shows}.",
        "",
        "| task type | games | solved | success | 95 % interval | mean steps of solved | transitions |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        "| setting | value |",  # the same settings give the same data, so they are all here but the data's place
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in asdict(plan).items() if key not in ("data", "games")),
        f"| hash of the game list | {plan.games} |",
        *(f"| {name} | {version} |" for name, version in versions().items()),
        "",
        "`text_input` is the prompt, `text_output` the expert's command, `executed` what was done instead where it "
        "differs, `feedback` the engine's answer. The label is one right answer of several.",
    ]
    return "\n".join(lines) + "\n"
