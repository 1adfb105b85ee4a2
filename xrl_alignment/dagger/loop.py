"""The DAgger loop: who asks → decide → answer → store → learn → end of round.

`DaggerLoop.run` is the algorithm; each of its steps is one method below it, in the same order.

Ross, Gordon, Bagnell 2011, arXiv:1011.0686, algorithm 3.1 (DAgger): the policy visits states, the expert labels every
one of them, the policy learns from all labels so far. With probability beta the expert's action is executed instead of
the policy's. EMMA, Yang et al. 2024, arXiv:2311.16714, adds DPO (the expert's action is chosen, the policy's own is
rejected) and Reflexion memories between rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from alfworld_native.experts.base import act_all
from alfworld_native.language.commands import is_thought
from lavis.common.errors import DivergedError
from xrl_alignment.agents.language.plain import plain
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.agents.policies.base import Policy, PolicyInput, frames_of
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.dagger.episode import Decision, LabelledEpisode, may_be_the_datas, works
from xrl_alignment.dagger.front import Asking, Front
from xrl_alignment.dagger.recovery import recover
from xrl_alignment.dagger.rounds import LabelGuard, MissingLabelsError, Rounds
from xrl_alignment.dagger.training import NoTraining, Trainer
from xrl_alignment.runs.checkpoint import CheckpointError
from xrl_alignment.runs.directory import EpisodeRecord

GOODBYE_S = 5.0  # at the end of a run, for clients that have not heard of it


class DaggerLoop:
    """Lets the clients of `front` play until all rounds are over, and `training` learn from what they play.

    `ask_policy` asks the policy for its own answer at every step (DPO's rejected side); without it the policy is not
    asked in states in which the expert drives. `enable_tc` lets expert and policy think (`think: …`). `write_prompt`
    writes what the model sees. Without `training` (an evaluation) no transition is stored, nothing is learned, and the
    expert is not asked.
    """

    def __init__(
        self,
        *,
        front: Front,
        rounds: Rounds,
        policy: Policy,
        training: Trainer | None = None,
        label_guard: LabelGuard | None = None,
        ask_policy: bool = False,
        enable_tc: bool = False,
        seed: int = 42,
        write_prompt: Callable[..., str] = build_prompt,
        on_progress: Callable[[dict[str, Any]], None] = lambda status: None,
    ) -> None:
        self.front = front
        self.rounds = rounds
        self.policy = policy
        self.training = training or NoTraining()
        self.label_guard = label_guard or LabelGuard()
        self.ask_policy = ask_policy
        self.enable_tc = enable_tc
        self.seed = seed
        self.write_prompt = write_prompt
        self.on_progress = on_progress
        self.directory = rounds.directory
        self.times = rounds.times
        self._policy_call_s = 0.0  # how long the policy's last call took

    def serve(self) -> None:
        """Bring the run to where its journal ends, then `run` it; what ends it early goes to its log as well.

        Raises DivergedError or CheckpointError if loss, gradient or weights are not finite. Raises EndpointFault
        if the expert cannot be asked any more (its budget is spent, its endpoint is down) and MissingLabelsError if
        it gives too few labels: the run can then be resumed. Raises CheckpointError and RunDirectoryError as `recover`.
        """
        try:
            recover(self.rounds, self.training, lambda: self.on_progress({**self.status(), "recovering": True}))
            self.run()
        except (DivergedError, CheckpointError) as error:
            self.directory.logger.error(str(error))
            raise
        except (EndpointFault, MissingLabelsError) as error:
            self.directory.logger.error(str(error))
            raise type(error)(
                f"{error}; the run is kept: repeat the command with --resume {self.directory.path}"
            ) from error

    def run(self) -> None:
        """DAgger. Ends with the last round, for which DONE is written, or without it when the server is stopped."""
        while True:
            while self.rounds.round_over:  # the next one may be empty: every game was solved before it
                self.end_round()
            if self.rounds.finished or self.front.server.stopped:
                break

            # Who asks: episodes that need an action, and episodes that have ended.
            # Waiting for more requests than these pays no longer than the policy's last call took (`Front.collect`).
            asking, ended = self.front.collect(longest_s=self._policy_call_s)
            # What has ended is stored before anything else can fail: its clients were told that it is over.
            stored = [self.store(episode) for episode in ended]

            # Decide and answer. Whoever answers with a thought is asked again at once.
            if asking:
                with self.times.part("waiting"):
                    staleness = self.training.before_batch(len(asking), lambda: self.front.server.stopped)
            while asking:
                decisions = self.decide_each([episode for _, episode in asking])
                asking, over = self.answer(asking, decisions, staleness)
                stored += [self.store(episode) for episode in over]

            # Learn, before anybody else is answered: a killed run repeats what its journal holds.
            for record in stored:
                round_over = self.rounds.round_over and record is stored[-1]
                played = any(each.steps for each in self.rounds.records)
                self.label_guard.judge(record, round_over=round_over, played=played)
                with self.times.part("training"):
                    self.training.learn(record)
                self.on_progress(self.status())

        if self.rounds.finished:
            self.training.finish(self.rounds.num_rounds)
            self.directory.mark_done()
            # Clients that still ask are told that the run is over, until all have left or patience ends.
            deadline = time.monotonic() + GOODBYE_S
            while self.front.greeted and time.monotonic() < deadline:
                self.front.collect(timeout_s=0.2)

    def decide(self, episodes: Sequence[LabelledEpisode]) -> list[Decision]:
        """What to do in the newest state of each episode. A function of these states: it changes no episode.

        So a decision that is not used needs no roll-back; `answer` commits those that are.
        """
        prompts = [self.write_prompt(e.opening, e.memories, e.steps) for e in episodes]

        # D_i = {(s, pi*(s))}: the expert labels every visited state, whoever drives. None: it has no label for it.
        labels: list[str | None] = [None] * len(episodes)
        if self.training.keeps_transitions:  # else labels are of no use, and a call of a language model costs
            with self.times.part("expert"):
                advice = act_all([e.expert for e in episodes], [e.information for e in episodes])
            labels = [e.label(said, thoughts=self.enable_tc) for e, said in zip(episodes, advice, strict=True)]

        # pi_i = beta_i pi* + (1 - beta_i) pi^_i: a coin says for each state whether the expert drives.
        expert_drives = [
            label is not None and episode.expert_drives(self.seed)
            for episode, label in zip(episodes, labels, strict=True)
        ]

        # The policy answers in one call: where it drives, and for DPO everywhere (its own action is the rejected one).
        questions: dict[int, PolicyInput] = {}
        for i, episode in enumerate(episodes):
            if self.ask_policy or not expert_drives[i]:
                seen = episode.observation
                questions[i] = PolicyInput(
                    prompts[i],
                    seen.image,
                    seen.admissible_commands,
                    episode.game,
                    episode.steps,
                    episode.earlier_images(frames_of(self.policy) - 1),
                    self.enable_tc and episode.may_think,
                )
        began = time.monotonic()
        with self.times.part("policy"):
            answers = self.policy.act(list(questions.values())) if questions else []
        self._policy_call_s = time.monotonic() - began
        # A policy of somebody's own may hand on what a client has sent.
        own = dict(zip(questions, map(plain, answers), strict=True))

        # The original's rule for an expert's answer that was filtered: the policy's own action becomes the label.
        return [
            Decision(
                prompt=prompts[i],
                label=own[i] if label is None else label,
                own=own.get(i),
                executed=label if label is not None and expert_drives[i] else own[i],
                expert_drives=expert_drives[i],
                labelled=label is not None,
            )
            for i, label in enumerate(labels)
        ]

    def decide_each(self, episodes: Sequence[LabelledEpisode]) -> list[Decision | Exception]:
        """The decision for each episode, or the error that its data caused; raises what is not the data's fault."""
        try:
            return list(self.decide(episodes))
        except Exception as error:
            if not (may_be_the_datas(error) and works(self.policy, self.write_prompt)):
                raise
            if len(episodes) == 1:
                return [error]
        # One of them fails the whole batch, and nobody knows which one: each is decided alone.
        return [decision for episode in episodes for decision in self.decide_each([episode])]

    def answer(
        self, asking: Sequence[Asking], decisions: Sequence[Decision | Exception], staleness: int | None
    ) -> tuple[list[Asking], list[LabelledEpisode]]:
        """Commit decisions and send the actions; `staleness` is that of the policy which has decided.

        Returns who has had a thought, and needs an action still, and the episodes that end here: because of their data,
        or because one thought came again and again.
        """
        thinking: list[Asking] = []
        ended: list[LabelledEpisode] = []
        for (request, episode), decision in zip(asking, decisions, strict=True):
            try:
                if isinstance(decision, Exception):
                    raise decision
                episode.commit(decision, staleness)
            except Exception as error:
                if not may_be_the_datas(error):
                    raise
                ended += self.front.give_up(request, error)
                continue
            action, heard = decision.executed, " ".join(episode.newest_text.split())
            # A line in the original's form; `-`: the policy was not asked.
            self.directory.logger.info(
                f"Task: [{episode.env}], Iter: [{episode.actions}], Obs: {heard}, "
                f"VLM Action: {'-' if decision.own is None else decision.own}, LLM Action: {decision.label}"
            )
            # ReAct (Yao et al. 2023, arXiv:2210.03629): the environment does not notice a thought, nor does the client.
            if self.enable_tc and episode.may_think and is_thought(action):
                episode.think(action)
                if episode.stuck:
                    ended.append(self.front.end(request))
                else:
                    thinking.append((request, episode))
            else:
                request.reply([episode.act(action)])
        return thinking, ended

    def store(self, episode: LabelledEpisode) -> EpisodeRecord:
        """Write a finished episode: its shard, its line in the journal, its paragraph in the round's log."""
        self.directory.check_place()
        # The shard first: what the journal names is on disk. Only what the journal names is learned.
        shard = self.training.keep(episode)
        labels_count = self.training.keeps_transitions  # an evaluation learns from none, so none can be missing
        record = EpisodeRecord(
            round=episode.round,
            env=episode.env,
            game=episode.game,
            won=episode.won,
            assisted=episode.assisted,
            actions=episode.actions,
            opening=episode.opening,
            steps=episode.steps,
            shard=shard,
            seconds=time.monotonic() - episode.started,
            states=len(episode.transitions) if labels_count else 0,
            unlabelled=episode.unlabelled if labels_count else 0,
        )
        self.directory.append_episode(record)
        # Now, not when the object goes: the run's last episode outlives DONE, and nobody opens a run that is done to
        # remove what a kill has left.
        episode.transitions.remove()
        self.directory.write_trial(record, episode.memories)
        self.rounds.count(record)
        return record

    def end_round(self) -> None:
        """Every game of the round is over: checkpoint, memories, results and logs; then the next round begins."""
        round = self.rounds.round
        with self.times.part("training"):
            training = self.training.end_round(round, last=round == self.rounds.num_rounds - 1)
        # The memories, saved last, say that the round is over: a run that is killed before does all of this again.
        self.rounds.close(training)
        self.rounds.begin_next()
        self.on_progress(self.status())

    def status(self) -> dict[str, Any]:
        """Progress for `/status` and the progress bar."""
        return {**self.rounds.status(), "playing": len(self.front.episodes), **self.training.status()}
