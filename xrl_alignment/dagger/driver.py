"""Decides what the agent does next: asks expert and policy, and stores what both said as a transition."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from xrl_alignment.common.time_split import TimeSplit
from xrl_alignment.dagger.episode import LabelledEpisode, verdict
from xrl_alignment.experts.base import act_all
from xrl_alignment.language.prompt import build_prompt
from xrl_alignment.policies.base import Policy, PolicyInput
from xrl_alignment.runs.transitions import Transition
from xrl_alignment.wire.messages import Observation


class Driver:
    """Chooses the executed action of each waiting episode: the policy's, or with probability beta the expert's.

    `preferences` asks the policy for its own answer at every step (DPO's rejected side); without it the policy is not
    asked where the expert drives. `enable_tc` lets expert and policy think (`think: …`). `write_prompt` writes what
    the model sees (`language.prompt.build_prompt`). Each decision is a line in `log`.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        log: logging.Logger,
        preferences: bool = False,
        enable_tc: bool = False,
        seed: int = 42,
        write_prompt: Callable[..., str] = build_prompt,
    ) -> None:
        self.policy = policy
        self.preferences = preferences
        self.enable_tc = enable_tc
        self.seed = seed
        self.write_prompt = write_prompt
        self.call_s = 0.0  # how long the policy's last call took
        self.staleness: int | None = None  # of the policy's weights (`training.Trainer`)
        self.times = TimeSplit()
        self._log = log

    def decide(self, episodes: Sequence[LabelledEpisode]) -> list[str]:
        """The next action (or thought) of each episode, stored with its label as the episode's newest transition."""
        seen = [episode.observation for episode in episodes]
        prompts = [self.write_prompt(e.opening, e.memories, e.steps) for e in episodes]
        labels = self._labels(episodes)
        assisted = [
            label is not None and episode.expert_drives(self.seed)
            for episode, label in zip(episodes, labels, strict=True)
        ]
        asked = [i for i, expert_drives in enumerate(assisted) if self.preferences or not expert_drives]
        own = self._ask_policy({i: _policy_input(prompts[i], episodes[i]) for i in asked})
        executed = []
        for i, episode in enumerate(episodes):
            # The original's rule for a filtered expert answer: the policy's own action becomes the label.
            said = labels[i]
            episode.labelled = said is not None
            episode.unlabelled += said is None
            label = own[i] if said is None else said
            action = label if assisted[i] else own[i]
            episode.assisted |= assisted[i]
            episode.transitions.append(Transition(seen[i].image, prompts[i], label, own.get(i, ""), action, ""))
            if self.staleness is not None:
                episode.staleness.append(self.staleness)
            self._note(episode, own.get(i, "-"), label)
            executed.append(action)
        return executed

    def _labels(self, episodes: Sequence[LabelledEpisode]) -> list[str | None]:
        with self.times.part("expert"):
            advice = act_all([e.expert for e in episodes], [information_for(e.observation) for e in episodes])
        return [e.label(said, thoughts=self.enable_tc) for e, said in zip(episodes, advice, strict=True)]

    def _ask_policy(self, inputs: dict[int, PolicyInput]) -> dict[int, str]:
        began = time.monotonic()
        with self.times.part("policy"):
            answers = self.policy.act(list(inputs.values())) if inputs else []
        self.call_s = time.monotonic() - began
        return dict(zip(inputs, answers, strict=True))

    def _note(self, episode: LabelledEpisode, own: str, label: str) -> None:
        """A line in the original's form."""
        heard = " ".join(episode.newest_text.split())
        self._log.info(
            f"Task: [{episode.env}], Iter: [{episode.actions}], Obs: {heard}, VLM Action: {own}, LLM Action: {label}"
        )


def _policy_input(prompt: str, episode: LabelledEpisode) -> PolicyInput:
    seen = episode.observation
    return PolicyInput(prompt, seen.image, seen.admissible_commands, episode.game, episode.steps)


def information_for(observation: Observation) -> dict[str, Any]:
    """What the expert is told: what came with the observation, in the form of `environments.base.information_of`.

    ALFWorld's own infos, which wire v1's clients send, hold a batch of one game.
    """
    return {
        **observation.information,
        "admissible_commands": observation.admissible_commands,
        "won": verdict(observation),
        "engine": observation.information.get("engine", ""),
    }
