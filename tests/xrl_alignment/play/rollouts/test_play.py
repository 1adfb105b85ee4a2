"""One episode of any agent, on the native engine and generated games: what is asked, what ends it, what goes wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from alfworld_native.base import TimeStep
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.base import ExpertQuestion
from alfworld_native.experts.seeing import SeeingExplorer
from xrl_alignment.agents.experts import Label, make_expert
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play, play_expert, without_questions
from xrl_alignment.play.rollouts.sequential import SequentialExecutor


class Says:
    """Says each of `words` in turn, then the last one for ever; keeps the turns that it saw."""

    def __init__(self, *words: str | None) -> None:
        self.words = list(words)
        self.acted: list[Turn] = []
        self.witnessed: list[tuple[str, str]] = []

    def __call__(self, turn: Turn):
        self.acted.append(turn)
        yield from ()
        return self.words.pop(0) if len(self.words) > 1 else self.words[0]

    def witness(self, turn: Turn, action: str):
        self.witnessed.append((action, turn.now.text))
        yield from ()


class Asks:
    """Asks for its action, and after each action for what it sees."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, turn: Turn):
        return (yield ("act", turn.episode.game, turn.episode.actions))

    def witness(self, turn: Turn, action: str):
        self.seen.append((yield ("see", turn.episode.game, turn.episode.actions)))


def played(game, agent, **options):
    return without_questions(play(NativeEnvironment(), game, agent, witness=agent.witness, **options))


def test_the_episode_holds_what_was_said_and_the_agent_sees_every_state(games):
    agent = Says("look", "dance")
    episode = played(games[0], agent, max_steps=3, memories=["Try."])
    assert [action for action, _ in episode.steps] == ["look", "dance", "dance"] and episode.rejected == 2
    assert agent.witnessed == episode.steps and list(episode.memories) == ["Try."]
    assert agent.acted[0].now.text == episode.text and agent.acted[0].episode is episode
    assert agent.acted[0].information["engine"] == "native" and "look" in agent.acted[1].now.admissible_commands


def test_an_executor_answers_the_questions_of_many_episodes_together(games):
    batches = []

    def answer(questions):
        batches.append([question[0] for question in questions])
        return ["look" if kind == "act" else f"{game} {actions}" for kind, game, actions in questions]

    agents = {game.id: Asks() for game in games[:3]}

    def rollout(game):
        agent = agents[game.id]
        return (yield from play(NativeEnvironment(), game, agent, witness=agent.witness, max_steps=2))

    with SequentialExecutor(interleave=3) as executor:
        outcomes = list(executor.run(rollout, games[:3], answer=answer))
    assert [outcome.value.game for outcome in outcomes] == [game.id for game in games[:3]]
    assert batches == [["act"] * 3, ["see"] * 3] * 2
    assert all(agent.seen == [f"{game} 1", f"{game} 2"] for game, agent in agents.items())


def test_every_step_is_reported_also_of_an_agent_that_asks_nothing(games):
    rollout = play(NativeEnvironment(), games[0], Says("look"), max_steps=2)
    assert list(rollout) == [None, None]


def test_an_agent_ends_the_episode_by_saying_nothing(games):
    episode = played(games[0], Says("look", None))
    assert (episode.actions, episode.won) == (1, False)


def test_the_same_action_again_and_again_ends_it(games):
    assert played(games[0], Says("dance"), repeat_limit=3).actions == 3


def test_without_a_limit_the_agent_is_asked_in_the_last_state_too(games):
    """As the server is, which ends the episode itself."""
    asked = []

    def agent(turn: Turn):
        asked.append(turn.now)
        return None if turn.episode.done else (yield from ask_expert(expert, turn)).action

    expert = make_expert("explorer")
    episode = without_questions(play(NativeEnvironment(), games[0], agent, expert=expert, max_steps=None))
    assert episode.won and len(asked) == episode.actions + 1 and asked[-1].done
    asked.clear()
    expert = make_expert("explorer")
    bounded = without_questions(play(NativeEnvironment(), games[0], agent, expert=expert))
    assert bounded.steps == episode.steps and len(asked) == episode.actions


def test_thoughts_are_answered_without_the_environment_if_they_are_wanted(games):
    plain, thinking = Says("think: where?", "look"), Says("think: where?", "look")
    heard = [played(games[0], plain, max_steps=2), played(games[0], thinking, max_steps=2, thoughts=True)]
    assert heard[0].steps[0][1] == "Nothing happens." and heard[0].actions == 2
    assert heard[1].steps[0][1] == "OK." and [action for action, _ in thinking.witnessed] == ["look", "look"]


def test_a_game_that_is_over_when_it_is_loaded_is_not_played(games):
    class Over(NativeEnvironment):
        def reset(self, game):
            return super().reset(game)._replace(won=True, done=True)

    agent = Says("look")
    episode = without_questions(play(Over(), games[0], agent))
    assert episode.won and not agent.acted


def test_what_an_environment_raises_comes_in_the_turn_of_its_game_and_other_games_are_played_to_the_end(games):
    class Breaks(NativeEnvironment):
        def step(self, action) -> TimeStep:
            raise RuntimeError("the simulator is gone")

    def rollout(game):
        environment = Breaks() if game is games[1] else NativeEnvironment()
        return (yield from play(environment, game, Asks(), max_steps=2))

    with SequentialExecutor(interleave=3) as executor:
        outcomes = executor.run(rollout, games[:3], answer=lambda questions: ["look"] * len(questions))
        assert next(outcomes).value.actions == 2
        with pytest.raises(RuntimeError, match="the simulator is gone"):
            next(outcomes)


def test_blank_frames_are_black_and_nothing_is_rendered(games):
    class Blind(NativeEnvironment):
        def render(self):
            raise AssertionError("rendered")

    agent = Says(None)
    without_questions(play(Blind(), games[0], agent))
    frame = agent.acted[0].frame(blank=True)
    assert frame.dtype == np.uint8 and frame.ndim == 3 and not frame.any()
    with pytest.raises(AssertionError, match="rendered"):
        agent.acted[0].frame()


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (np.zeros((8, 8, 4), np.uint8), r"gives uint8 \(8, 8, 4\)"),
        (np.zeros((8, 8, 3)), r"gives float64 \(8, 8, 3\)"),
        (np.zeros((8, 8), np.uint8), r"gives uint8 \(8, 8\)"),
        (None, "gives a NoneType"),
    ],
)
def test_a_view_that_is_no_frame_is_refused_at_once(games, seen, said):
    class Odd(NativeEnvironment):
        def render(self):
            return seen

    agent = Says(None)
    without_questions(play(Odd(), games[0], agent))
    with pytest.raises(EnvironmentFault, match=f"Odd.render.. {said}: a frame is a uint8 array"):
        agent.acted[0].frame()


class Silent:
    """An expert without an answer."""

    name = "silent"

    def begin(self, intro, *, task_type="", memories=()):
        self.told = (intro, task_type, memories)

    def observe(self, action, feedback):
        self.heard = action, feedback

    def act(self, information=None):
        return Label(None)


def by_expert(game, expert, **options):
    return without_questions(play_expert(NativeEnvironment(), game, expert, **options))


def test_an_expert_without_an_answer_looks_or_ends_the_episode(games):
    expert = Silent()
    episode = by_expert(games[0], expert, max_steps=2, memories=["Try."])
    assert [action for action, _ in episode.steps] == ["look", "look"] and expert.heard == episode.steps[-1]
    assert expert.told == (episode.text, games[0].id, ["Try."])
    assert by_expert(games[0], Silent(), otherwise=None).actions == 0


def test_an_expert_beside_the_agent_is_told_what_was_done_but_not_what_was_thought(games):
    expert = Silent()
    played(games[0], Says("inventory", "think: hm", None), expert=expert, thoughts=True)
    assert expert.heard[0] == "inventory"


def test_an_expert_that_waits_for_a_network_is_handed_to_the_caller(games):
    expert = Silent()
    with ThreadPoolExecutor(1) as pool:
        expert.pool = pool
        rollout = play_expert(NativeEnvironment(), games[0], expert, max_steps=1)
        asked = next(rollout)
        assert isinstance(asked, ExpertQuestion) and asked.expert is expert
        assert asked.information["admissible_commands"] and rollout.send(Label("inventory")) is None
        with pytest.raises(StopIteration) as end:
            next(rollout)
    assert end.value.value.steps[0][0] == "inventory"


def test_an_expert_with_eyes_is_shown_the_room(games):
    blind = [by_expert(game, make_expert("explorer")).actions for game in games]
    seeing = [by_expert(game, SeeingExplorer("everything")).actions for game in games]
    assert sum(seeing) < sum(blind)


def test_a_question_without_anybody_to_answer_it_is_a_mistake_of_the_caller(games):
    with pytest.raises(AssertionError, match="nobody is there to answer"):
        without_questions(play(NativeEnvironment(), games[0], Asks()))
