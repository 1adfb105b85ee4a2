"""Episodes as film strips: small frames from the shard, one for each step, with what was said and done."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from alfworld_native.language.sentences import task_sentence, untold, without_objects
from lavis.datasets.shards import ShardError, open_shard
from xrl_alignment.runs.transitions import read_transition
from xrl_alignment.show.report.charts import data_url
from xrl_alignment.show.report.episodes import FinishedEpisode
from xrl_alignment.show.report.run_data import told_to_agent

FRAMES = 14  # of a strip; of a longer episode the first and the last ones
_WIDTH, _QUALITY = 160, 70


class StripStep(NamedTuple):
    """A step: its number (from 1), its frame (a `data:` URL), the expert's label, the executed action, the answer.

    `untold` are the answer's sentences that the agent was not told; they are not in `feedback`.
    """

    number: int
    frame: str
    expert: str
    executed: str
    feedback: str
    untold: str


class FilmStrip(NamedTuple):
    """An episode: why it is shown, its task, its steps (None: some are left out), and what is missing."""

    title: str
    task: str
    steps: Sequence[StripStep | None]
    notice: str = ""


def film_strip(run: Path, why: str, episode: FinishedEpisode) -> FilmStrip:
    """The strip of an episode; without frames, and with a notice, if its shard cannot be read."""
    title = f"{why}: {episode.game}, round {episode.round + 1}"
    task = task_sentence(episode.trace.opening)
    told = told_to_agent(run)
    hides = told is not None and not told.tell_objects
    path = run / "state" / "buffer" / Path(episode.shard).name  # a journal of anyone cannot lead out of the run
    try:
        # Of a long episode its two halves: how it began, and how it ended.
        count, half = open_shard(path).steps, FRAMES // 2
        steps: list[StripStep | None] = []
        for index in range(count):
            if count <= FRAMES or index < half or index >= count - half:
                step = read_transition(path, index)
                image = Image.fromarray(step.image)
                small = image.resize((_WIDTH, max(1, round(image.height * _WIDTH / image.width))), Image.Resampling.BOX)
                jpeg = io.BytesIO()
                small.save(jpeg, "JPEG", quality=_QUALITY)
                frame = data_url("jpeg", jpeg.getvalue())
                said = without_objects(step.feedback) if hides else step.feedback
                left_out = " ".join(untold(step.feedback)) if hides else ""
                steps.append(StripStep(index + 1, frame, step.text_output, step.executed, said, left_out))
            elif index == half:  # the gap
                steps.append(None)
    except (ShardError, OSError) as error:
        return FilmStrip(title, task, [], f"The frames of this episode are missing: {type(error).__name__}.")
    return FilmStrip(title, task, steps)
