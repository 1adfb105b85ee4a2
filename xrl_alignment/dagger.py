"""The DAgger loop: one observation in, one action out, and learning after every episode.

Follow one observation: `DaggerLoop.run` takes it from the server, `_receive` adds it to its episode, `_act` asks
expert and policy and answers, `_finish` stores the episode's transitions and lets the learner train on them, and
`_end_round` writes what a round leaves behind.

Ross, Gordon, Bagnell 2011 (DAgger: the policy's own states, the expert's labels, mixing probability beta); EMMA, Yang
et al. 2024 (DPO with the expert's action chosen and the policy's own rejected; Reflexion memories between rounds).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xrl_alignment.actions import is_thought, normalise
from xrl_alignment.buffers import Transition, shard_name, write_shard
from xrl_alignment.checkpoint import load_checkpoint, restore_model, save_checkpoint
from xrl_alignment.experts.base import Expert, Label
from xrl_alignment.history import EnvironmentHistory, EpisodeTrace, build_prompt, opening
from xrl_alignment.learner import Learner, TrainingMetrics
from xrl_alignment.policies import Policy, PolicyInput
from xrl_alignment.protocol import SKIP, Bye, Hello, Next, Observation
from xrl_alignment.reflexion import Reflector, update_memories
from xrl_alignment.run_directory import EpisodeRecord, RunDirectory
from xrl_alignment.schedule import Schedule, ScheduleError
from xrl_alignment.server import DaggerHTTPServer, Pending

MAX_THOUGHTS = 3  # thoughts in a row that are answered `OK.`; the next one goes to the environment like any action
V1_SESSION = "v1"  # wire v1 knows no sessions: there is one client


@dataclass
class Episode:
    """One game being played by one session."""

    env: int
    game: str
    round: int
    beta: float
    opening: str
    memories: Sequence[str]
    expert: Expert
    history: EnvironmentHistory
    observation: Observation  # the newest
    steps: list[tuple[str, str]] = field(default_factory=list)  # executed action, feedback; thoughts included
    transitions: list[Transition] = field(default_factory=list)
    actions: int = 0  # sent to the environment
    thoughts: int = 0  # in a row
    assisted: bool = False  # the expert drove at least one step
    awaiting: str = ""  # the action whose feedback has not come yet
    started: float = field(default_factory=time.monotonic)

    def hear(self, action: str, feedback: str) -> None:
        """Add an executed action and its feedback to everything that keeps the episode's story."""
        self.steps.append((action, feedback))
        self.history.add("action", action)
        self.history.add("observation", feedback)
        self.transitions[-1] = replace(self.transitions[-1], feedback=feedback)

    def trace(self, won: bool) -> EpisodeTrace:
        """The episode as a reflector reads it."""
        return EpisodeTrace(self.game, self.game.split("-", 1)[0], self.opening, tuple(self.steps), won)


class DaggerLoop:
    """Answers clients through `server` until all rounds are over, and trains `learner` (None: only evaluates).

    `make_expert` gives a fresh expert for every episode; `client_expert` is the one that clients are asked to compute
    beside their environment instead (handcoded, planner), or empty. `beta` is the probability, by round (its last
    value repeats), that the expert's action is executed instead of the policy's. `budget` and `count` bound the prompt
    (see `history.build_prompt`). `train_every` episodes are gathered before the learner is called. With
    `state_interval_s` 0 the trainer's state is written after every episode; otherwise at most that often, and a resume
    repeats the updates since then, which are a function of the journal.
    """

    def __init__(
        self,
        *,
        server: DaggerHTTPServer,
        policy: Policy,
        make_expert: Callable[[], Expert],
        learner: Learner | None,
        directory: RunDirectory,
        schedule: Schedule,
        reflector: Reflector | None,
        model=None,
        config: dict[str, Any] | None = None,
        client_expert: str = "",
        preferences: bool = False,
        enable_tc: bool = False,
        beta: Sequence[float] = (0.0,),
        max_steps: int = 50,
        repeat_limit: int = 0,
        seed: int = 42,
        max_batch: int = 32,
        window_s: float = 0.002,
        train_every: int = 1,
        save_ckpt: bool = True,
        state_interval_s: float = 30.0,
        budget: int | None = None,
        count: Callable[[str], int] = len,
        on_progress: Callable[[dict[str, Any]], None] = lambda status: None,
    ) -> None:
        self.server = server
        self.policy = policy
        self.make_expert = make_expert
        self.learner = learner
        self.directory = directory
        self.schedule = schedule
        self.reflector = reflector
        self.model = model
        self.config = config or {}
        self.client_expert = client_expert
        self.preferences = preferences
        self.enable_tc = enable_tc
        self.beta = list(beta)
        self.max_steps = max_steps
        self.repeat_limit = repeat_limit
        self.seed = seed
        self.max_batch = max_batch
        self.window_s = window_s
        self.train_every = train_every
        self.save_ckpt = save_ckpt
        self.state_interval_s = state_interval_s
        self.budget = budget
        self.count = count
        self.on_progress = on_progress

        self.memories: dict[str, list[str]] = {}
        self._episodes: dict[str, Episode] = {}  # by session
        self._sessions: set[str] = set()  # v2 sessions that have said hello and not bye
        self._records: list[EpisodeRecord] = []  # of this round
        self._finished_episodes = 0
        self._state_saved_at = time.monotonic()
        self._round_started = time.monotonic()

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the last round has ended; writes DONE."""
        self._resume()
        while not self.schedule.finished:
            self._answer(self.server.take(self.max_batch, timeout_s=1.0, window_s=self.window_s))
        self.directory.mark_done()
        self._say_goodbye()

    def status(self) -> dict[str, Any]:
        """Progress for `/status` and the progress bar."""
        return {
            "round": min(self.schedule.round, self.schedule.num_rounds - 1),
            "num_rounds": self.schedule.num_rounds,
            "played_in_round": self.schedule.played_in_round,
            "num_envs": self.schedule.num_envs,
            "solved": len(self.schedule.solved),
            "episodes": self._finished_episodes,
            "training_step": self.learner.training_step if self.learner else 0,
            "sessions": len(self._episodes),
            "finished": self.schedule.finished,
        }

    def _answer(self, pending: Sequence[Pending]) -> None:
        waiting: list[tuple[Pending, Episode]] = []
        ended: list[tuple[Episode, bool]] = []
        for item in pending:
            match item.message:
                case Observation():
                    self._receive(item, waiting, ended)
                case Hello():
                    self._greet(item)
                case Next():
                    item.reply(self._assign(item.message.session))
                case Bye():
                    self._drop(item.message.session, item.message.reason or "left")
                    self._sessions.discard(item.message.session)
                    item.reply({"kind": "bye"})
        if waiting:
            self._act(waiting)
        for episode, won in ended:
            self._finish(episode, won)

    def _greet(self, item: Pending) -> None:
        try:
            self.schedule.offer(item.message.games)
        except ScheduleError as error:
            item.reply({"kind": "error", "reason": str(error)})
            return
        self._sessions.add(item.message.session)
        item.reply({"kind": "welcome", "num_rounds": self.schedule.num_rounds, "expert": self.client_expert})

    def _assign(self, session: str) -> dict[str, Any]:
        """Answer a session that asks for work."""
        self._drop(session, "asked for new work")
        if self.schedule.finished:
            return {"kind": "finished"}
        game = self.schedule.next_game(session)
        if game is None:
            return {"kind": "wait", "seconds": 0.2}
        return {"kind": "work", "env": self.schedule.env_of(game), "game": game, "round": self.schedule.round}

    def _drop(self, session: str, why: str) -> None:
        """Forget a session's unfinished episode; its game goes back to the others."""
        episode = self._episodes.pop(session, None)
        self.schedule.release(session)
        if episode:
            self.directory.logger.info(f"Task: [{episode.env}] given back: its client {why}")

    # --- one observation -------------------------------------------------------------------------------------------

    def _receive(self, item: Pending, waiting: list, ended: list) -> None:
        """Add an observation to its episode; sort the episode into those that need an action and those that ended."""
        observation = item.message
        session = observation.session or V1_SESSION
        episode = self._episodes.get(session)
        if observation.task_type:
            if episode and not observation.session:  # v1: a new game without `done` ends the one before, unsolved
                del self._episodes[session]
                self._finish(episode, won=False)
            episode = self._begin(session, observation)
            if episode is None:
                _end_episode(item)
                return
            waiting.append((item, episode))
            return
        if episode is None:
            _end_episode(item)  # an episode that this server does not know (it was restarted): the client goes on
            return
        episode.expert.observe(episode.awaiting, observation.text)
        episode.hear(episode.awaiting, observation.text)
        episode.observation = observation
        won = observation.done if observation.won is None else observation.won
        stuck = episode.history.check_is_exhausted()
        if won or observation.done or stuck or episode.actions >= self.max_steps:
            del self._episodes[session]
            ended.append((episode, won))
            _end_episode(item)
        else:
            waiting.append((item, episode))

    def _begin(self, session: str, observation: Observation) -> Episode | None:
        """Start an episode, or None where this run has no use for that game now."""
        game = observation.task_type
        env = self.schedule.env_of(game)
        if env < 0 or not self.schedule.open(game):
            return None
        self.schedule.hold(game, session)
        memories = self.memories.get(game, [])
        start = opening(observation.text)
        expert = self.make_expert()
        expert.begin(observation.text)
        self._episodes[session] = Episode(
            env=env,
            game=game,
            round=self.schedule.round,
            beta=self.beta[min(self.schedule.round, len(self.beta) - 1)],
            opening=start,
            memories=memories,
            expert=expert,
            history=EnvironmentHistory("", start, memories, repeat_limit=self.repeat_limit),
            observation=observation,
        )
        return self._episodes[session]

    def _act(self, waiting: list[tuple[Pending, Episode]]) -> None:
        """Decide and send the next action of every waiting episode; thoughts are answered here, without the client."""
        while waiting:
            episodes = [episode for _, episode in waiting]
            thinking = []
            for (item, episode), action in zip(waiting, self._decide(episodes), strict=True):
                if is_thought(action) and episode.thoughts < MAX_THOUGHTS:
                    episode.thoughts += 1
                    episode.hear(action, "OK.")
                    thinking.append((item, episode))
                else:
                    episode.thoughts = 0
                    episode.actions += 1
                    episode.awaiting = action
                    item.reply([action])
            waiting = thinking

    def _decide(self, episodes: Sequence[Episode]) -> list[str]:
        """The executed action of each episode: the policy's, or with probability beta the expert's.

        Stores a transition for each. The policy is not asked where its answer would have no use: under behavioural
        cloning, when the expert drives.
        """
        seen = [episode.observation for episode in episodes]
        prompts = [self._prompt(episode) for episode in episodes]
        labels = [self._label(episode) for episode in episodes]
        expert_drives = [
            label is not None and self._coin(episode) < episode.beta
            for episode, label in zip(episodes, labels, strict=True)
        ]
        asked = [i for i, drives in enumerate(expert_drives) if self.preferences or not drives]
        answers = self.policy.act([PolicyInput(prompts[i], seen[i].image, seen[i].admissible_commands) for i in asked])
        own: dict[int, str] = dict(zip(asked, answers, strict=True))
        executed = []
        for i, episode in enumerate(episodes):
            # The original's rule for a filtered expert answer: the policy's own action becomes the label.
            label = labels[i] if labels[i] is not None else own[i]
            action = label if expert_drives[i] else own[i]
            episode.assisted |= expert_drives[i]
            episode.transitions.append(Transition(seen[i].image, prompts[i], label, own.get(i, ""), action, ""))
            self._log_step(episode, own.get(i, "-"), label)
            executed.append(action)
        return executed

    def _prompt(self, episode: Episode) -> str:
        return build_prompt(episode.opening, episode.memories, episode.steps, budget=self.budget, count=self.count)

    def _label(self, episode: Episode) -> str | None:
        """The expert's answer as text: a new thought first when thoughts are imitated; None where it has no answer."""
        advice: Label = episode.expert.act(episode.observation.information)
        if (
            self.enable_tc
            and advice.thought
            and episode.thoughts == 0
            and f"think: {advice.thought}" not in (action for action, _ in episode.steps)
        ):
            return f"think: {advice.thought}"
        return None if advice.action is None else normalise(advice.action)

    def _coin(self, episode: Episode) -> float:
        """Uniform in [0, 1), a function of (seed, round, game, step): the same whatever order games are played in."""
        return random.Random(f"{self.seed}/{episode.round}/{episode.game}/{len(episode.steps)}").random()

    def _log_step(self, episode: Episode, own: str, label: str) -> None:
        heard = episode.steps[-1][1] if episode.steps else episode.opening
        self.directory.logger.info(
            f"Task: [{episode.env}], Iter: [{episode.actions}], Obs: {' '.join(heard.split())}, "
            f"VLM Action: {own}, LLM Action: {label}"
        )

    # --- the end of an episode and of a round ------------------------------------------------------------------------

    def _finish(self, episode: Episode, won: bool) -> None:
        """Store a finished episode, learn from it, and end the round when it was the last one."""
        shard = ""
        if self.learner and episode.transitions:
            shard = shard_name(episode.round, episode.env, len(episode.transitions))
            attributes = {"game": episode.game, "won": won, "assisted": episode.assisted, "opening": episode.opening}
            write_shard(self.directory.buffer / shard, episode.transitions, attributes)
        record = EpisodeRecord(
            round=episode.round,
            env=episode.env,
            game=episode.game,
            won=won,
            assisted=episode.assisted,
            actions=episode.actions,
            opening=episode.opening,
            steps=episode.steps,
            shard=shard,
            seconds=time.monotonic() - episode.started,
        )
        self.directory.append_episode(record)
        self.directory.write_trial(record, episode.memories)
        self._learn_from(record)
        self._save_state()
        if self.schedule.round_over:
            self._end_round()

    def _learn_from(self, record: EpisodeRecord) -> None:
        """What one journal line does to the run: also the step that a resume repeats."""
        self.schedule.env_of(record.game)
        self.schedule.finish(record.game, solved=record.solved)
        self._records.append(record)
        self._finished_episodes += 1
        if self.learner and record.shard:
            self.learner.buffer.add_shard(record.shard)
            if self._finished_episodes % self.train_every == 0:
                self.directory.logger.info("*************Start Training*************")
                self.learner.learn(record.round, lambda metrics: self._log_metrics(record.round, metrics))
        self.on_progress(self.status())

    def _log_metrics(self, epoch: int, metrics: TrainingMetrics) -> None:
        self.directory.logger.info(metrics.line(epoch))
        for tag, value in metrics.scalars():
            self.directory.scalar(f"train/{tag}", value, metrics.step)

    def _end_round(self) -> None:
        """Log the round, reflect on its failures, save a checkpoint, begin the next; rounds with no game left pass."""
        while self.schedule.round_over:
            round = self.schedule.round
            seconds = time.monotonic() - self._round_started
            self._reflect(round)
            self.directory.write_results(round, self._results())
            self._write_round(round, seconds)
            if self.save_ckpt and self.model is not None:
                self._save_checkpoint(self.directory.checkpoint(round))
            self.directory.save_memories(round + 1, self.memories)
            self._next_round()
            self._save_state(force=True)

    def _next_round(self) -> None:
        self.schedule.advance()
        self._records = []
        self._round_started = time.monotonic()

    def _write_round(self, round: int, seconds: float) -> None:
        solved, new = len(self.schedule.solved), self.schedule.newly_solved
        total = self.schedule.num_envs
        self.directory.write_round(round, solved=solved, newly_solved=new, total=total, seconds=seconds)
        self.directory.scalar("round/accuracy", solved / total, round)
        if self._records:
            self.directory.scalar("round/won", sum(r.won for r in self._records) / len(self._records), round)

    def _reflect(self, round: int) -> None:
        """Give every failed game of the round a memory."""
        if self.reflector is None:
            return
        failed = [
            EpisodeTrace(r.game, r.game.split("-", 1)[0], r.opening, tuple(map(tuple, r.steps)), r.won)
            for r in self._records
            if not r.won
        ]
        self.memories = update_memories(failed, self.memories, self.reflector)

    def _results(self) -> dict[str, dict[str, Any]]:
        lengths = {record.game: record.actions for record in self._records}
        return {
            f"env_{i}": {
                "game": game,
                "type": game.split("-", 1)[0],
                "is_success": game in self.schedule.solved,
                "path_length": lengths.get(game, 0),
                "memory": self.memories.get(game, []),
            }
            for i, game in enumerate(self.schedule.games)
        }

    # --- what survives -----------------------------------------------------------------------------------------------

    def _save_state(self, force: bool = False) -> None:
        """Write the trainer's state if it is due."""
        now = time.monotonic()
        if self.learner is None or not (force or now - self._state_saved_at >= self.state_interval_s):
            return
        self._save_checkpoint(self.directory.trainer)
        self._state_saved_at = time.monotonic()

    def _save_checkpoint(self, path) -> None:
        learner = self.learner
        save_checkpoint(
            path,
            model=self.model,
            optimizer=learner.optimizer if learner else None,
            scaler=learner.scaler if learner else None,
            round=self.schedule.round,
            training_step=learner.training_step if learner else 0,
            episodes=self._finished_episodes,
            random=learner.random_state() if learner else {},
            config=self.config,
        )

    def _resume(self) -> None:
        """Bring the run to where its journal ends: restore the trainer, then repeat what came after it."""
        journal = self.directory.episodes()
        if not journal:
            return
        memories_round, saved_memories = self.directory.load_memories()
        trained = 0
        if self.learner and self.directory.trainer.exists():
            checkpoint = load_checkpoint(self.directory.trainer)
            restore_model(self.model, checkpoint, self.directory.trainer)
            trained = checkpoint["episodes"]
        learner, restored = self.learner, False
        for record in journal:
            if learner and trained and not restored and self._finished_episodes == trained:
                learner.restore(checkpoint)
                restored = True
            while self.schedule.round < record.round:
                self._next_round()
            self._replay(record, train=self._finished_episodes >= trained)
        if learner and trained and not restored:
            learner.restore(checkpoint)
        self.memories = saved_memories
        while self.schedule.round < memories_round:
            self._next_round()
        for i, record in enumerate(self._records):  # the kill may have come between journal and log
            self.directory.write_trial(record, self.memories.get(record.game, []), afresh=i == 0)
        self.directory.logger.info(f"Resumed after {len(journal)} episodes, in round {self.schedule.round}")
        if self.schedule.round_over:
            self._end_round()

    def _replay(self, record: EpisodeRecord, *, train: bool) -> None:
        """Apply a journal line, training on it only if the restored trainer has not yet."""
        if train:
            self._learn_from(record)
            return
        self.schedule.env_of(record.game)
        self.schedule.finish(record.game, solved=record.solved)
        self._records.append(record)
        self._finished_episodes += 1
        if self.learner and record.shard:
            self.learner.buffer.add_shard(record.shard)

    def _say_goodbye(self, patience_s: float = 5.0) -> None:
        """Tell clients that still ask that the run is over, until they have left or patience ends."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and self._sessions:
            self._answer(self.server.take(self.max_batch, timeout_s=0.2))


def _end_episode(item: Pending) -> None:
    """Answer an observation after which there is nothing to do: a final one, or a game that is not to be played."""
    item.reply([] if item.message.session or item.message.done else [SKIP])
