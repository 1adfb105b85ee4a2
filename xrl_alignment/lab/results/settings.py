"""How large the experiments are: the settings of `python -m xrl_alignment.results`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.mixture import checked_mixture
from lavis.common.errors import ConfigError
from xrl_alignment.settings.checks import Rule, at_least, between, list_of
from xrl_alignment.settings.fields import Section, setting

SWITCHES = ("expert", "history", "notes", "driver", "games", "batches")
EXPERIMENTS = ("shipped", "student", "phase_two", "pooled", "reflexion", "images", "looking", "ablations")

COUNTS = list_of("numbers of games, each at least 1", lambda value: value >= 1, empty=False)
# The learning rate falls in equal steps: eight, or twenty of a long training.
FEW = Rule(
    "a number of at least 1 that is a multiple of its eighth",
    lambda value: value >= 1 and not value % max(1, value // 8),
)
MANY = Rule(
    "a number of at least 1 that is a multiple of its twentieth",
    lambda value: value >= 1 and not value % max(1, value // 20),
)
CURVE = list_of("numbers of batches, each a multiple of its eighth", FEW.holds, empty=False)
SEEDS = list_of("whole numbers of at least 0", lambda value: value >= 0, empty=False)


def _names_of(known: tuple[str, ...]) -> Rule:
    return Rule(f"a list of {', '.join(known)}", lambda names: bool(names) and set(names) <= set(known))


@dataclass(frozen=True)
class ResultsConfig(Section, section="results"):
    """Sizes of all experiments; `configs/results/full.yaml` holds those of docs/results.md."""

    experiments: list[str] = setting(
        list(EXPERIMENTS), "which experiments to run", _names_of(EXPERIMENTS), may_change=True
    )
    output: str = setting("output/results", "folder of all data, checkpoints and figures", may_change=True)
    jobs: int = setting(2, "programs that run at once, each on one thread", at_least(1), may_change=True)
    levels: dict[str, Any] = setting(
        {},
        "mixture of levels of all training games, and of the generated games that phase 2, the ablations and Reflexion "
        "are judged on, level: weight (docs/levels.md); empty: official training games, and generated ones of "
        "`standard`",
    )
    seeds: list[int] = setting([0, 1, 2], "one run of everything for each", SEEDS, may_change=True)
    told_games: int = setting(
        2000, "training games whose text names the objects (rendered state with labels)", at_least(1)
    )
    plain_games: int = setting(2500, "the same, rendered state without labels", at_least(1))
    blank_games: int = setting(1500, "the same, black frames", at_least(1))
    hidden_games: int = setting(0, "games in which only the image shows what lies where; 0: all", at_least(0))
    remembered_games: int = setting(1000, "games that were tried before, with a memory of that", at_least(1))
    taken_games: int = setting(
        1800,
        "the same, rendered state without labels, only states in which something is taken, each three times",
        at_least(1),
    )
    noise: float = setting(
        0.1, "share of the steps in which another command than the expert's is executed", between(0, 1)
    )
    read_games: int = setting(
        4000, "generated games that the language model reads, beside the official ones", at_least(1)
    )
    read_tokens: float = setting(18.0, "millions of tokens that it reads", at_least(0.0))
    batches: int = setting(1200, "batches of 32 of behavioural cloning", MANY)
    cloned: str = setting("", "checkpoint that the DAgger rounds of every seed begin with; empty: each seed's own")
    dagger_batches: int = setting(600, "batches that follow on the student's own games, too", MANY)
    round_games: int = setting(
        600, "games in each information setting that the cloned student plays and the expert labels", at_least(1)
    )
    regimes: list[int] = setting([178, 711, 3553], "numbers of training games that phase 2 is compared at", COUNTS)
    regime_batches: int = setting(360, "batches of cloning before phase 2", FEW)
    phase_games: int = setting(500, "games of the round of phase 2, at most the regime's", at_least(1))
    pooled_batches: int = setting(200, "batches of 32 of phase 2 on own and the expert's games together", FEW)
    looking_games: int = setting(711, "training games of an explorer that sees, and of one that does not", at_least(1))
    looking_batches: int = setting(200, "batches of 32 of cloning on them", FEW)
    switches: list[str] = setting(list(SWITCHES), "which ablations to run", _names_of(SWITCHES), may_change=True)
    ablation_games: int = setting(711, "training games of each ablation", at_least(1))
    ablation_batches: int = setting(200, "batches of cloning of each ablation", FEW)
    curve: list[int] = setting([36, 178, 711, 3553], "numbers of training games of the ablation `games`", COUNTS)
    batch_curve: list[int] = setting([24, 48, 96, 200], "numbers of batches of the ablation `batches`", CURVE)
    heldout_games: int = setting(250, "generated games that phase 2 and the ablations are judged on", at_least(1))
    second_trial_games: int = setting(
        1000, "generated games that Reflexion is measured on; the good student fails few", at_least(1)
    )
    valid_games: int = setting(140, "official valid_seen games that the students are judged on", at_least(1))

    def check_combinations(self) -> None:
        """The mixture has levels that exist."""
        try:
            checked_mixture(self.levels or {"standard": 1})
        except EnvironmentFault as error:
            raise ConfigError(f"results.levels: {error}") from error


@dataclass
class ResultsFile:
    """A settings file of this command has one section."""

    results: ResultsConfig = field(default_factory=ResultsConfig)
