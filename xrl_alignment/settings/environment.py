"""The settings of the games: which ones, on which engine, and what the model is told and shown of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import HOUSEHOLD_SPLITS
from alfworld_native.household.mixture import checked_mixture, horizon_of
from lavis.common.errors import ConfigError
from xrl_alignment.common.choices import CAMERAS, ENVIRONMENT_NAMES, IMAGE_NOISE_NAMES, NAMES_BY
from xrl_alignment.settings.checks import at_least, between, check_has_effect, named, one_of, one_of_or_class
from xrl_alignment.settings.fields import Section, setting

SEVERITY = between(0, 4)


@dataclass(frozen=True)
class EnvironmentConfig(Section, section="environment"):
    """Which games, on which engine, and what the model is shown of them."""

    # Which games: the same section gives the same list on the server and on its clients.
    name: str = setting(
        "native",
        "engine: ours, TextWorld's, or AI2-THOR; `household` generates new games and plays them on ours; "
        "`module:Class`: your own (docs/architecture.md)",
        one_of_or_class(*ENVIRONMENT_NAMES),
    )
    split: str = setting("valid_seen", "split from which the games are drawn", named("a split's name"))
    data: str = setting(
        "",
        "folder that holds `json_2.1.1`; empty: `$ALFWORLD_DATA`, else the download folder of ALFWorld",
        may_change=True,
    )
    num_train: int = setting(2000, "training games that `household` generates", at_least(1))
    num_heldout: int = setting(100, "held-out games that `household` generates", at_least(1))
    levels: dict[str, Any] = setting(
        {},
        "mixture of levels of the games that `household` generates, level: weight (`{standard: 0.3, compound: 0.2}`); "
        "each level has its share of the games, and each game ends at its own level's horizon; empty: `standard` "
        "(docs/levels.md)",
    )
    seed: int = setting(0, "seed of the choice of games, and of their generation with `household`", at_least(0))
    allow_other_games: bool = setting(
        False,
        "let clients play another engine, split or game list than this section says; else such a client is refused",
        may_change=True,
    )
    # What the model is told and shown of them (docs/information.md names the combinations).
    name_by: str = setting(
        "number",
        "how texts and commands name objects: by `number` (`mug 2`), or by `type`: `take mug from countertop 1` takes "
        "the first mug there (docs/information.md). Receptacles have numbers always",
        one_of(*NAMES_BY),
    )
    show_ids: bool = setting(
        True, "frames show the rendered state with labels (names and numbers of receptacles and objects)"
    )
    blank_frames: bool = setting(
        False, "give the model black images: the ablation that shows whether it uses its vision"
    )
    other_frames: bool = setting(
        False,
        "frames show another game of the split, which the explorer plays, a step for each step: the ablation that "
        "shows whether the model looks at its own",
    )
    camera: str = setting(
        "front",
        "rendered frames show what is before the agent, or all four directions (`around`: four frames, one below the "
        "other, which the model reads as a video), or the receptacle at hand with large objects, whose looks differ "
        "from game to game (`close`; docs/frames.md)",
        one_of(*CAMERAS),
    )
    # Disturbances, for the robustness figures.
    image_noise: str = setting(
        "gaussian",
        "kind of noise on the frames: normal noise on every pixel, a grey rectangle (`occlusion`), black frames "
        "(`dropped`), dark ones (`brightness`), or those of EMAC+'s figure 4: cropped, enlarged, a segment moved "
        "(`segments`); has no effect unless `image_severity` is above 0",
        one_of(*IMAGE_NOISE_NAMES),
    )
    image_severity: int = setting(0, "strength of that noise; 0: none", SEVERITY)
    text_noise: float = setting(
        0.0,
        "share of the words of the environment's answers that give way to another word of the same answer, for "
        "whoever reads them (EMAC+'s figure 4); 0: none",
        between(0, 1),
    )
    tell_objects: bool = setting(
        True,
        "the model's text names the objects that it sees; without it only the image shows them (the expert's text "
        "names them always)",
    )

    def check_combinations(self) -> None:
        """Black frames show no game, nor noise. A mixture of levels is of generated games, and of levels that exist."""
        for name in ("other_frames", "image_severity"):
            valid = not (getattr(self, name) and self.blank_frames)
            check_has_effect(f"environment.{name}", getattr(self, name), valid, "environment.blank_frames=false")
        if not self.levels:
            return
        try:
            checked_mixture(self.levels)
        except EnvironmentFault as error:
            raise ConfigError(f"environment.levels: {error}") from error
        valid = self.name == "household" and self.split in HOUSEHOLD_SPLITS
        condition = "environment.name=household, with a split that it generates (household_train, household_heldout)"
        check_has_effect("environment.levels", self.levels, valid, condition)

    def check_horizon(self, max_steps: int, key: str = "run.max_steps") -> None:
        """ConfigError if an episode may have fewer steps than a level of the mixture grants (0: as many)."""
        longest = horizon_of(checked_mixture(self.levels)) if self.levels else 0
        if 0 < max_steps < longest:
            raise ConfigError(
                f"{key}: {max_steps} is less than the longest horizon of environment.levels: set "
                f"{key}={longest} (each game ends at its own level's horizon)"
            )

    @property
    def told(self) -> str:
        """What the model's text tells, in a few words."""
        text = "text" if self.tell_objects else "text without objects"
        if self.name_by == "type":
            text += " without numbers" if self.tell_objects else " and numbers"
        return text + (f" with noise ({self.text_noise:g})" if self.text_noise else "")

    @property
    def frames(self) -> str:
        """What the model's frames show, in a few words.

        Never just "image": whether a type is read from a label or recognised decides how hard the task is.
        """
        if self.blank_frames:
            return "black frames"
        frames = f"rendered state {'with' if self.show_ids else 'without'} labels"
        frames += {"around": " of all four directions", "close": " from near"}.get(self.camera, "")
        frames += ", AI2-THOR's" if self.name == "thor" else ""
        frames += ", of another game" if self.other_frames else ""
        return frames + (f" with noise ({self.image_noise}, {self.image_severity})" if self.image_severity else "")

    @property
    def by_looks(self) -> bool:
        """Whether only the looks of objects say what is where (setting d of docs/information.md)."""
        return not (self.tell_objects or self.show_ids) and self.name_by == "type"

    @property
    def shows(self) -> str:
        """What the model is told and shown."""
        return f"{'by looks: ' if self.by_looks else ''}{self.told}, {self.frames}"
