"""Protocols by name: the rules under which an ALFWorld score is made, ours and those of published ones.

Two success rates can be compared only if both were counted by the same rules. A `Protocol` holds the rules of one
source as its code or its paper says them: games, steps, trials, what counts as solved, what stands in the prompt.
`evaluate.py --protocol NAME` sets the rules and refuses an option that contradicts them. The games may be others
than the protocol's, because not everybody has them; then the card says so. `differs` says what this program does
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from alfworld_native.household.levels import horizon
from lavis.common.config import read_option
from lavis.common.errors import ConfigError, unknown
from xrl_alignment.settings.schema import EvaluateConfig

DEFAULT = "single-trial"
OWN = "own settings"  # of a result: no protocol was named, and the settings are not those of DEFAULT
NOT_NAMED = "not named"  # of a row that an older version has written

FIRST_TRIAL, BY_GAME, BY_SLOT = "first trial", "by game, over all trials", "by slot, over all trials"


_DECODING = {"": "free, or admissible apart", "free": "free text", "admissible": "admissible commands"}


@dataclass(frozen=True)
class Protocol:
    """The rules of one source."""

    source: str  # where the rules were read
    split: str
    games: int
    steps: int  # 0: those of the split (50, or a level's horizon)
    trials: int
    counted: str  # FIRST_TRIAL, BY_GAME or BY_SLOT
    prompt: str  # what the player is told
    dialect: str  # how commands are written there; the environments here understand both (`commands.canonical`)
    decode: str  # "free" text, or "admissible" commands; empty: either, in tables apart
    decoding: str  # how the source chooses among the tokens
    held_out: str  # whether the source's players were not trained on these games
    memories: bool = False  # a failed game is played again with a memory of the failure
    moving_slots: bool = False  # each trial plays the next game in each slot
    differs: str = "–"
    further: dict[str, Any] = field(default_factory=dict)  # settings that are rules of this source alone

    @property
    def rules(self) -> dict[str, Any]:
        """The settings that make these rules, `section.key` -> value: no option may contradict them."""
        decode: dict[str, Any] = {"policy.decode": self.decode, "expert.decode": self.decode} if self.decode else {}
        if self.decode == "free":
            decode["expert.ground"] = False  # it reads the admissible commands
        return {
            "run.max_steps": self.steps,
            "run.num_trials": self.trials,
            "run.moving_slots": self.moving_slots,
            "run.swap_memories": False,
            "run.repeat_limit": 0,
            "reflexion.enabled": self.memories,
            **decode,
            **self.further,
        }


PROTOCOLS = {
    DEFAULT: Protocol(
        source="this project",
        split="valid_seen",
        games=140,
        steps=0,
        trials=1,
        counted=FIRST_TRIAL,
        prompt="room, task, all steps so far (and the image)",
        dialect="put X in/on Y",
        decode="",
        decoding="the player's own",
        held_out="yes, or the card says no",
    ),
    "react": Protocol(
        source="code of ReAct (alfworld.ipynb)",
        split="valid_unseen",
        games=134,
        steps=49,
        trials=1,
        counted=FIRST_TRIAL,
        prompt="two worked examples of the task's type, room, task, all steps so far",
        dialect="put X in/on Y",
        decode="free",
        decoding="temperature 0",
        held_out="unknown (language models)",
        differs="a thought costs a step there, none here; three worked examples here",
        further={"expert.temperature": 0.0},
    ),
    "reflexion": Protocol(
        source="code of Reflexion (alfworld_runs)",
        split="valid_unseen",
        games=134,
        steps=49,
        trials=10,
        counted=BY_GAME,
        prompt="two worked examples, the last three memories, room, task, all steps so far",
        dialect="put X in/on Y",
        decode="free",
        decoding="temperature 0, more after an empty answer",
        held_out="no: the memories are of the same games",
        memories=True,
        differs="a thought costs a step there, none here",
        further={"run.repeat_limit": 2},
    ),
    "eto": Protocol(
        source="code of ETO, which SAND and MPO take over",
        split="valid_unseen",
        games=134,
        steps=40,
        trials=1,
        counted=FIRST_TRIAL,
        prompt="one worked example, room, task, all steps so far",
        dialect="put X in/on Y",
        decode="free",
        decoding="temperature 0",
        held_out="yes: trained on train",
        differs="its other column are the 140 games of valid_seen; a thought is part of each answer there",
        further={"expert.temperature": 0.0},
    ),
    "emma-12": Protocol(
        source="EMMA's code and released logs",
        split="valid_unseen",
        games=134,
        steps=30,
        trials=12,
        counted=BY_SLOT,
        prompt="image, the last three memories of the slot, room, task, all steps so far",
        dialect="put X in/on Y",
        decode="free",
        decoding="beam search of 5",
        held_out="no: trained on these games between the trials",
        memories=True,
        moving_slots=True,
        differs="nothing is trained between the trials here; 118 of its 134 games are official valid_unseen; beams are "
        "the player's own",
    ),
    "emac-plus-12": Protocol(
        source="EMAC+'s paper (tables 9 and 10) and official repository",
        split="valid_unseen",
        games=134,
        steps=30,
        trials=12,
        counted=BY_GAME,
        prompt="image, the last three feedbacks, room, task, all steps so far",
        dialect="put X in/on Y",
        decode="free",
        decoding="beam search of 5",
        held_out="no: trained on these games between the trials",
        memories=True,
        differs="nothing is trained between the trials here; it counts slots, and whether a slot keeps its game is not "
        "published: here it does; beams are the player's own",
    ),
    "verl-agent": Protocol(
        source="scripts of verl-agent (GiGPO) and of projects upon it",
        split="valid_seen",
        games=128,
        steps=50,
        trials=1,
        counted=FIRST_TRIAL,
        prompt="task, the last two steps, the admissible commands",
        dialect="the installed version's",
        decode="admissible",
        decoding="sampled, temperature 0.4",
        held_out="yes: trained on train",
        differs="all steps here, not the last two; some projects upon it play 30 steps or valid_unseen",
        further={"expert.temperature": 0.4},
    ),
    "agentgym": Protocol(
        source="code of AgentGym (AgentEval, distributed_eval_alfworld.sh)",
        split="valid_train",
        games=200,
        steps=30,
        trials=1,
        counted=FIRST_TRIAL,
        prompt="instructions, room, task, all steps so far, the admissible commands",
        dialect="put X in/on Y",
        decode="admissible",
        decoding="greedy",
        held_out="other trials of rooms and tasks of train",
        differs="its 200 games are a list of its own out of valid_train; here as many are drawn",
        further={"expert.temperature": 0.0},
    ),
}


def protocol(name: str) -> Protocol:
    """The protocol called `name`; ConfigError for another name."""
    if name not in PROTOCOLS:
        raise ConfigError(unknown("protocol", name, PROTOCOLS))
    return PROTOCOLS[name]


def options_of(name: str) -> list[str]:
    """`section.key=value` for everything that the protocol sets: its games, then its rules."""
    chosen = protocol(name)
    settings = {"environment.split": chosen.split, "run.num_envs": chosen.games, **chosen.rules}
    if chosen.decode == "admissible":  # these two look at what a player would write; a settings file may have them on
        settings |= {"policy.skip_rejected": False, "policy.skip_visited": False}
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


def check_options(name: str, options: Iterable[str]) -> None:
    """ConfigError for an option that is another value than the protocol's, before the rest is read.

    Together with the protocol's other rules it may also make no sense (`run.num_trials=1` beside `run.moving_slots`).
    """
    rules = protocol(name).rules
    for option in options:
        key = option.partition("=")[0]
        if key in rules and key != "run.max_steps" and OmegaConf.select(read_option(option), key) != rules[key]:
            raise _contradiction(name, option, key)


def _contradiction(name: str, option: str, key: str) -> ConfigError:
    return ConfigError(
        f"--options {option} contradicts --protocol {name}, which has {key}={protocol(name).rules[key]}: leave one of "
        "them out (docs/scores.md lists the protocols)"
    )


def check_rules(name: str, config: EvaluateConfig, options: Iterable[str]) -> None:
    """ConfigError if `config`, read with the user's `options` over those of the protocol, breaks one of its rules."""
    for key, value in protocol(name).rules.items():
        if _rule(key, config) != (value or horizon(config.environment.split) if key == "run.max_steps" else value):
            given = next((option for option in options if option.startswith(f"{key}=")), key)
            raise _contradiction(name, given, key)


def recognised(config: EvaluateConfig) -> str:
    """The protocol of settings for which none was named: the default, or none (`OWN`)."""
    rules = PROTOCOLS[DEFAULT].rules | {"run.max_steps": horizon(config.environment.split)}
    # A memory is written after a failed trial, so with one trial it does not matter whether memories are on.
    del rules["reflexion.enabled"]
    return DEFAULT if all(_rule(key, config) == value for key, value in rules.items()) else OWN


def own_games(name: str, config: EvaluateConfig, games: int) -> bool:
    """Whether so many `games` of the split are the protocol's own; True for DEFAULT: any games are its."""
    chosen = PROTOCOLS.get(name)
    if chosen is None or name == DEFAULT:
        return True
    played = (config.environment.name != "household", config.environment.split, games)
    return played == (True, chosen.split, chosen.games)


def other_decoding(name: str, decode: str) -> str:
    """The protocol's decoding in words if `decode` is another one; empty if it is not, or the protocol allows both.

    The settings keep the players of this project to the rule. A class of somebody's own chooses what it reads, and
    random commands are always admissible ones.
    """
    chosen = PROTOCOLS.get(name)
    return "" if chosen is None or chosen.decode in ("", decode) else _DECODING[chosen.decode]


def protocols_table() -> str:
    """All protocols as a table in Markdown."""
    head = ["protocol", "source", "games", "steps", "trials", "counted", "prompt", "commands", "decoding", "held out"]
    head.append("what `evaluate.py` does otherwise")
    lines = [head, ["---"] * len(head)]
    for name, each in PROTOCOLS.items():
        how = _DECODING[each.decode]
        lines.append(
            [
                f"`{name}`", each.source, f"{each.games} of `{each.split}`", str(each.steps or "the split's"),
                str(each.trials), each.counted, each.prompt, each.dialect, f"{how}; {each.decoding}", each.held_out,
                each.differs,
            ]
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rule(key: str, config: EvaluateConfig) -> Any:
    """The value of a setting; of the steps, those that are played (0 stands for the split's own)."""
    section, _, name = key.partition(".")
    value = getattr(getattr(config, section), name)
    return value or horizon(config.environment.split) if key == "run.max_steps" else value
