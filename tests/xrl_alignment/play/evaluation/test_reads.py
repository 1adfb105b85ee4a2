"""A player is given what it declares, and nothing else."""

from __future__ import annotations

import pytest

from alfworld_native import make_environment
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import Label, make_expert
from xrl_alignment.agents.policies.uniform import RandomPolicy
from xrl_alignment.play.evaluation.actors import ExpertActor, PolicyActor
from xrl_alignment.play.evaluation.reads import READS, UNDECLARED, RestrictedExpert, reads_of
from xrl_alignment.play.evaluation.trials import play_games


class Listening:
    """Notes all that it is told."""

    def __init__(self) -> None:
        self.told = []

    def begin(self, intro, *, task_type="", memories=()):
        self.told.append((intro, task_type))

    def observe(self, action, feedback):
        self.told.append(feedback)

    def act(self, information=None):
        self.told.append(list(information["admissible_commands"]))
        return Label("look")


def play(games, expert):
    play_games(ExpertActor(lambda environment: RestrictedExpert(expert)), games[:1], native, max_steps=1)
    return expert.told


def native():
    return make_environment("native")


def test_an_expert_that_declares_nothing_is_told_the_text_alone(games):
    (intro, task_type), commands, feedback = play(games, Listening())
    assert intro.startswith("-= Welcome") and feedback and task_type == "" and commands == []


@pytest.mark.parametrize("reads", [(), ("admissible_commands",), ("text", "task_type"), READS])
def test_an_expert_is_told_what_it_declares(games, reads):
    expert = Listening()
    expert.reads = reads
    (intro, task_type), commands, feedback = play(games, expert)
    assert bool(intro) == bool(feedback) == ("text" in reads)
    assert task_type == (games[0].id if "task_type" in reads else "")
    assert ("look" in commands) == ("admissible_commands" in reads)


def test_a_restricted_expert_keeps_its_pool():
    expert = Listening()
    expert.pool = "a pool"
    assert RestrictedExpert(expert).pool == "a pool" and getattr(RestrictedExpert(Listening()), "pool", None) is None


@pytest.mark.parametrize("reads", [("text",), ("image",), ("admissible_commands",), READS[:3]])
def test_a_policy_is_shown_what_it_declares(games, scripted, reads):
    policy = scripted("look")
    policy.reads = reads
    play_games(PolicyActor(policy=policy), games[:1], native, max_steps=2)
    second = policy.inputs[1]
    assert bool(second.prompt) == bool(second.steps) == ("text" in reads)
    assert second.image.any() == ("image" in reads)
    assert bool(second.admissible_commands) == ("admissible_commands" in reads)
    assert games[0].id not in second.session and second.session == policy.inputs[0].session


def test_players_of_the_project_say_what_they_read():
    assert reads_of(RandomPolicy()) == ("admissible_commands",)
    assert reads_of(make_expert("explorer")) == ("text",)
    assert reads_of(make_expert("handcoded", environment=object())) == ("state",)
    assert reads_of(Listening()) == reads_of(Listening) == UNDECLARED == ("text",)


@pytest.mark.parametrize("declared", ["text", ("pixels",), 3, None])
def test_a_declaration_that_cannot_be_read_is_one_line(declared):
    expert = Listening()
    expert.reads = declared
    with pytest.raises(ConfigError, match=r"^Listening.reads is .* it must be a tuple of text, image"):
        reads_of(expert)
    expert.reads = ("text", "state")
    with pytest.raises(ConfigError, match="tuple of text, image, admissible_commands$"):
        reads_of(expert, policy=True)  # nothing shows a policy the state of the game
