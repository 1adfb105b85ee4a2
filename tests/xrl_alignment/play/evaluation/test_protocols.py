"""The registry of protocols: each sets all of its rules, and nothing may contradict them."""

from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from xrl_alignment.play.evaluation.protocols import (
    DEFAULT,
    OWN,
    PROTOCOLS,
    check_rules,
    options_of,
    other_decoding,
    own_games,
    protocol,
    protocols_table,
    recognised,
)
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import EvaluateConfig


def config(*options: str, cfg: str = "student") -> EvaluateConfig:
    return load_config(EvaluateConfig, REPO_ROOT / "configs" / "evaluate" / f"{cfg}.yaml", options)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("cfg", ["student", "expert", "endpoint", "episodes"])
def test_a_protocol_lies_over_every_players_file(name, cfg):
    made = config(*options_of(name), cfg=cfg)
    check_rules(name, made, [])
    chosen = PROTOCOLS[name]
    assert (made.run.num_trials, made.run.max_steps) == (chosen.trials, chosen.steps)
    assert (made.environment.split, made.run.num_envs) == (chosen.split, chosen.games) and own_games(
        name, made, chosen.games
    )
    assert made.run.moving_slots is chosen.moving_slots and made.reflexion.enabled is chosen.memories
    if chosen.decode:
        assert made.policy.decode == made.expert.decode == chosen.decode


OTHERS = {
    "run.max_steps": "7",
    "run.num_trials": "3",
    "run.moving_slots": "false",
    "run.repeat_limit": "2",
    "run.swap_memories": "true",
    "reflexion.enabled": "false",
    "policy.decode": "admissible",
    "expert.decode": "admissible",
    "expert.ground": "true",
}


@pytest.mark.parametrize("key", OTHERS)
def test_an_option_that_contradicts_a_rule_is_named(key):
    option = f"{key}={OTHERS[key]}"
    more = ["policy.skip_rejected=false", "policy.skip_visited=false"] if key == "policy.decode" else []
    with pytest.raises(ConfigError, match=rf"^--options {option} contradicts --protocol emma-12, which has {key}="):
        check_rules("emma-12", config(*options_of("emma-12"), option, *more), [option])


def test_other_games_are_allowed_and_said_to_be_others():
    made = config(*options_of("emma-12"), "environment.split=valid_seen", "run.num_envs=140")
    check_rules("emma-12", made, ["environment.split=valid_seen", "run.num_envs=140"])
    assert not own_games("emma-12", made, 140) and own_games(DEFAULT, made, 140) and own_games(OWN, made, 140)
    everything = config(*options_of("react"), "run.num_envs=0")  # all games of the split, which are the protocol's
    assert own_games("react", everything, 134) and not own_games("react", everything, 133)


def test_the_steps_of_the_default_are_those_of_the_split():
    level = ["environment.name=household", "environment.split=household_many"]
    made = config(*options_of(DEFAULT), *level)
    check_rules(DEFAULT, made, level)
    check_rules(DEFAULT, config(*options_of(DEFAULT), *level, "run.max_steps=100"), ["run.max_steps=100"])
    with pytest.raises(ConfigError, match=r"run.max_steps=50 contradicts"):
        check_rules(DEFAULT, config(*options_of(DEFAULT), *level, "run.max_steps=50"), ["run.max_steps=50"])


def test_settings_without_a_name_are_the_default_or_nobodys():
    assert recognised(config()) == recognised(config("policy.num_beams=2")) == DEFAULT
    admissible = ["policy.decode=admissible", "policy.skip_rejected=false", "policy.skip_visited=false"]
    assert recognised(config(*admissible)) == DEFAULT  # in a table of its own, but a single trial
    assert recognised(config("run.num_trials=2")) == recognised(config("run.max_steps=30")) == OWN
    assert recognised(config("run.repeat_limit=2")) == OWN, "it ends episodes that the protocol plays on"


def test_another_decoding_than_the_protocols_is_named():
    assert other_decoding("react", "admissible") == "free text" and other_decoding("react", "free") == ""
    assert other_decoding("verl-agent", "free") == "admissible commands"
    assert not any(other_decoding(name, decode) for name in (DEFAULT, OWN) for decode in ("free", "admissible"))


def test_an_unknown_protocol_is_one_line_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'emma-12'"):
        protocol("emma12")


def test_the_table_lists_every_protocol():
    assert len(protocols_table().splitlines()) == len(PROTOCOLS) + 2
