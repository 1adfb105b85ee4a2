"""What is collected and how, and what became of each game."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from alfworld_native.base import MAX_STEPS
from alfworld_native.games import HOUSEHOLD_SPLITS
from alfworld_native.household.mixture import horizon_of, read_mixture
from alfworld_native.language.commands import VERBS
from lavis.common.errors import ConfigError, unknown
from lavis.common.named_class import check_choice_or_class, is_class_name
from xrl_alignment.common.choices import CLIENT_EXPERTS, ENVIRONMENT_NAMES, EXPERT_NAMES
from xrl_alignment.runs.transitions import shard_name

LANGUAGE_MODEL = "openai"
EXPERTS = tuple(name for name in EXPERT_NAMES if name != "client")  # there is no client here
FORMATS = ("shards", "lavis")
SHOW_STATE = ("native", "textworld", "household")  # environments that tell where things are

_CAMERA_OF = {"labels": "front", "frame": "front", "labels-around": "around", "around": "around"}  # of `eyes`


@dataclass(frozen=True)
class Plan:
    """What is collected and how: the same plan gives the same data, whatever the number of workers.

    Prompts are shortened to `budget` tokens of `tokenizer` (`tiny`, or a folder with a language model's tokenizer), so
    that the model does not cut them. With probability `noise` an admissible command drawn at random is executed instead
    of the label (the states around the expert's path, as in DART, Laskey et al. 2017). With `thoughts` the expert
    thinks before it acts (`run.enable_tc` of training), with `notes` as `expert.notes` says. With `memories` each game
    has been tried before: the explorer played its first steps, and the prompt holds the memory of that attempt.
    `tell_objects`, `name_by`, `show_ids`, `camera` and `blank_frames` decide what the model is told and shown, as in
    the section `environment` (docs/information.md). `negatives` stores a random other admissible command as
    `text_output_neg`, for DPO without a policy. `order` and `eyes` are the explorer's: in which order it searches
    (`Explorer`), and what it sees beside what it reads (`experts.seeing.EYES`). `only` stores the states whose label
    begins with that word alone (`take`), so that a student can see more of what is rare. `levels` is a mixture
    (`standard=0.3 compound=0.2`) of generated games. `expert_options` are the `openai` expert's settings, without those
    that only decide where, how fast and for how much it runs.
    """

    env: str = "native"
    split: str = "train"
    expert: str = "explorer"
    num_games: int = 0
    data: str = ""
    seed: int = 0
    max_steps: int = MAX_STEPS
    format: str = "shards"
    image_format: str = "png"
    frames: bool = True
    keep_failed: bool = False
    noise: float = 0.0
    thoughts: bool = False
    memories: bool = False
    notes: bool = False
    tell_objects: bool = True
    name_by: str = "number"
    show_ids: bool = True
    camera: str = "front"
    blank_frames: bool = False
    negatives: bool = False
    only: str = ""
    tokenizer: str = "tiny"
    budget: int = 1023
    order: str = "likely"
    eyes: str = "none"
    expert_options: dict[str, Any] = field(default_factory=dict)
    levels: str = ""
    games: str = ""  # hash of the game list

    def __post_init__(self) -> None:
        """Check values and combinations."""
        if self.num_games < 0 or self.max_steps < 1 or self.budget < 1:
            raise ConfigError(
                "--num-games must be 0 (all) or more, --max-steps 0 (the split's) or more, --budget at least 1"
            )
        if self.levels and (longest := horizon_of(read_mixture(self.levels))) > self.max_steps:
            raise ConfigError(f"--max-steps {self.max_steps} is less than the longest horizon of --levels: {longest}")
        if self.levels and (self.env != "household" or self.split not in HOUSEHOLD_SPLITS):
            raise ConfigError("--levels is for generated games: use --env household --split household_train")
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"--noise {self.noise} is no probability")
        if self.image_format != Plan.image_format and self.format == "shards":
            raise ConfigError(f"--image-format {self.image_format} is for --format lavis: shards have one of their own")
        if self.notes and (self.expert != "explorer" or not self.thoughts):
            raise ConfigError("--notes are the explorer's thoughts: use it with --expert explorer --thoughts")
        words = (*sorted(VERBS), "look", "think:")
        if self.only and self.only not in words and not is_class_name(self.env):
            raise ConfigError(f"--only: {unknown('first word of a label', self.only, words)}")
        if not self.frames and self.format == "shards":
            raise ConfigError("--no-frames writes texts only: use it with --format lavis")
        check_choice_or_class("--env", self.env, ENVIRONMENT_NAMES)
        check_choice_or_class("--expert", self.expert, EXPERTS)
        if self.expert in CLIENT_EXPERTS and is_class_name(self.env):
            raise ConfigError(f"--expert {self.expert} reads the state of ALFWorld's games: use --env native")
        if (self.order, self.eyes) != ("likely", "none") and self.expert != "explorer":
            raise ConfigError(f"--order and --eyes are the explorer's, not for --expert {self.expert}")
        if self.eyes != "none" and self.env not in SHOW_STATE:
            raise ConfigError(f"--eyes reads the state of ALFWorld's games: use --env {' or '.join(SHOW_STATE)}")
        # A label must rest on what the stored frame shows; `surfaces` and `everything` are meant to know more.
        camera = _CAMERA_OF.get(self.eyes, self.camera)
        if camera != self.camera:
            raise ConfigError(
                f"--eyes {self.eyes} sees what frames of --camera {camera} show, not --camera {self.camera}"
            )
        if self.eyes in _CAMERA_OF and (self.blank_frames or not self.frames):
            raise ConfigError(f"--eyes {self.eyes} sees what frames show: leave out --blank-frames and --no-frames")
        if self.eyes.startswith("labels") and not self.show_ids:
            raise ConfigError(f"--eyes {self.eyes} reads the labels of frames: leave out --no-show-ids")


@dataclass(frozen=True)
class Collected:
    """One episode: its line in `episodes.jsonl`."""

    env: int
    game: str
    task_type: str
    won: bool
    steps: int
    stored: int
    seconds: float

    @property
    def shard(self) -> str:
        """The name of the file that holds its transitions (--format shards); empty if none is stored."""
        return shard_name(0, self.env, self.stored) if self.stored else ""
