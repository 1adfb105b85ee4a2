"""What a run keeps of its episodes: the journal, learning, rounds, memories, checkpoints; and how a killed run goes on.

The journal (`state/episodes.jsonl`) is the truth: a line is there once its episode counts. Everything else follows
from it: `open` repeats, line by line, what the trainer's saved state does not hold yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xrl_alignment.dagger.checkpoint import CheckpointError, load_checkpoint, restore_model, save_checkpoint
from xrl_alignment.dagger.episode import Episode
from xrl_alignment.dagger.learner import Learner, TrainingMetrics
from xrl_alignment.dagger.replay import shard_name, write_shard
from xrl_alignment.dagger.run_directory import EpisodeRecord, RunDirectory
from xrl_alignment.dagger.schedule import Schedule
from xrl_alignment.experts.llm.accounting import Account
from xrl_alignment.language.history import EpisodeTrace
from xrl_alignment.reflexion.base import Reflector, update_memories


class Ledger:
    """Keeps `directory`, `schedule` and `learner` (None: an evaluation, nothing is stored or trained) in step.

    The learner is called after every `train_every` episodes. With `state_interval_s` 0 the trainer's state is written
    after every episode; otherwise at most that often, and a resume repeats the updates since then. A checkpoint is
    written after each round where `save_ckpt`. `reflector` None: failed games get no memories. `account` is what the
    expert's calls cost, where they do. `say` is told what a round's time went into. `config` (plain containers) goes
    into checkpoints.
    """

    def __init__(
        self,
        *,
        directory: RunDirectory,
        schedule: Schedule,
        learner: Learner | None = None,
        reflector: Reflector | None = None,
        account: Account | None = None,
        config: dict[str, Any] | None = None,
        train_every: int = 1,
        save_ckpt: bool = True,
        state_interval_s: float = 30.0,
        on_progress: Callable[[dict[str, Any]], None] = lambda status: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.directory = directory
        self.schedule = schedule
        self.learner = learner
        self.reflector = reflector
        self.account = account
        self.config = config or {}
        self.train_every = train_every
        self.save_ckpt = save_ckpt
        self.state_interval_s = state_interval_s
        self.on_progress = on_progress
        self.say = say
        self.memories: dict[str, list[str]] = {}
        self.episodes = 0  # finished, over all rounds
        self._records: list[EpisodeRecord] = []  # of this round
        self._lengths: dict[str, int] = {}  # game -> actions of its last episode
        self._games_noted = 0
        self._state_saved_at = self._round_started = time.monotonic()
        self._training_s = 0.0  # in this round

    def status(self) -> dict[str, Any]:
        """How far the run is."""
        schedule = self.schedule
        return {
            "round": min(schedule.round, schedule.num_rounds - 1),
            "num_rounds": schedule.num_rounds,
            "played_in_round": schedule.num_envs if schedule.finished else schedule.played_in_round,
            "num_envs": schedule.num_envs,
            "solved": len(schedule.solved),
            "episodes": self.episodes,
            "training_step": self.learner.training_step if self.learner else 0,
            "finished": schedule.finished,
            **({"expert": self.account.status()} if self.account else {}),
        }

    def note_games(self) -> None:
        """Keep the games' order on disk when some have become known: it is what `env` numbers mean."""
        if len(self.schedule.games) != self._games_noted:
            self.directory.save_games(self.schedule.games)
            self._games_noted = len(self.schedule.games)

    # --- an episode's end --------------------------------------------------------------------------------------------

    def commit(self, episode: Episode, *, abandoned: bool = False) -> None:
        """Store a finished episode, learn from it, and end the round when it was the last one.

        An `abandoned` episode (its client went on to another game) is not won.
        """
        won = episode.won and not abandoned
        record = EpisodeRecord(
            round=episode.round,
            env=episode.env,
            game=episode.game,
            won=won,
            assisted=episode.assisted,
            actions=episode.actions,
            opening=episode.opening,
            steps=episode.steps,
            shard=self._store(episode, won),
            seconds=time.monotonic() - episode.started,
        )
        self.directory.append_episode(record)
        self.directory.write_trial(record, episode.memories)
        self._count(record, train=True)
        self._save_state()
        self._end_rounds()

    def _store(self, episode: Episode, won: bool) -> str:
        """Write the episode's shard; returns its name, empty where there is nothing to learn from."""
        if not (self.learner and episode.transitions):
            return ""
        name = shard_name(episode.round, episode.env, len(episode.transitions))
        attributes = {"game": episode.game, "won": won, "assisted": episode.assisted, "opening": episode.opening}
        write_shard(self.directory.buffer / name, episode.transitions, attributes)
        return name

    def _count(self, record: EpisodeRecord, *, train: bool) -> None:
        """What one journal line does to the run: also the step that a resume repeats."""
        self.schedule.finish(record.game, solved=record.solved)
        self._records.append(record)
        self._lengths[record.game] = record.actions
        self.episodes += 1
        if self.learner and record.shard:
            self.learner.buffer.add_shard(record.shard)
            if train and self.episodes % self.train_every == 0:
                self.directory.logger.info("*************Start Training*************")
                began = time.monotonic()
                self.learner.learn(record.round, lambda metrics: self._log_metrics(record.round, metrics))
                self._training_s += time.monotonic() - began
        self.on_progress(self.status())

    def _log_metrics(self, epoch: int, metrics: TrainingMetrics) -> None:
        self.directory.logger.info(metrics.line(epoch))
        for tag, value in metrics.scalars():
            self.directory.scalar(f"train/{tag}", value, metrics.step)

    # --- a round's end -----------------------------------------------------------------------------------------------

    def _end_rounds(self) -> None:
        """Log the round, reflect on its failures, save a checkpoint, begin the next; rounds with no game left pass.

        May be killed anywhere and is then done again from its start: memories are saved last, and say that it is over.
        """
        while self.schedule.round_over:
            round = self.schedule.round
            rollout_s = time.monotonic() - self._round_started - self._training_s
            self._reflect()
            self.directory.write_results(round, self._results())
            self._log_round(round, rollout_s)
            if self.save_ckpt and self.learner:
                self._save(self.directory.checkpoint(round))
            self.directory.save_memories(round + 1, self.memories)
            self._next_round()
            self._save_state(force=True)
            self.on_progress(self.status())

    def _next_round(self) -> None:
        self.schedule.advance()
        self._records = []
        self._round_started = time.monotonic()
        self._training_s = 0.0
        if self.account:
            self.account.start_round(self.schedule.round)

    def _log_round(self, round: int, rollout_s: float) -> None:
        """`rollout_s`: of the round's time, all that was not training until its last episode ended."""
        solved, total = len(self.schedule.solved), self.schedule.num_envs
        seconds = time.monotonic() - self._round_started
        new = self.schedule.newly_solved
        note = f"ROLLOUT: {rollout_s:.2f} s\nTRAINING: {self._training_s:.2f} s"
        note += f"\n{self.account.line(round)}" if self.account else ""
        self.say(
            f"round {round + 1}: rollout {rollout_s:.1f} s, training {self._training_s:.1f} s, total {seconds:.1f} s"
        )
        self.directory.write_round(round, solved=solved, newly_solved=new, total=total, seconds=seconds, note=note)
        self.directory.scalar("round/accuracy", solved / total, round)
        times = {"rollout_seconds": rollout_s, "training_seconds": self._training_s, "seconds": seconds}
        for name, value in times.items():
            self.directory.scalar(f"round/{name}", value, round)
        if self._records:
            self.directory.scalar("round/won", sum(r.won for r in self._records) / len(self._records), round)
        for name, value in self.account.figures(round).items() if self.account else ():
            self.directory.scalar(f"expert/{name}", value, round)

    def _reflect(self) -> None:
        """Give every failed game of the round a memory."""
        if self.reflector is None:
            return
        failed = [
            EpisodeTrace(r.game, r.task_type, r.opening, tuple(map(tuple, r.steps)), r.won)
            for r in self._records
            if not r.won
        ]
        self.memories = update_memories(failed, self.memories, self.reflector)

    def _results(self) -> dict[str, dict[str, Any]]:
        return {
            f"env_{i}": {
                "game": game,
                "type": game.split("-", 1)[0],
                "is_success": game in self.schedule.solved,
                "path_length": self._lengths.get(game, 0),
                "memory": self.memories.get(game, []),
            }
            for i, game in enumerate(self.schedule.games)
        }

    # --- what survives -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin the run, or bring it to where its journal ends.

        Raises CheckpointError when the trainer's state is damaged, of another frozen base, or ahead of the journal.
        """
        journal = self.directory.episodes()
        self.schedule.games = self.directory.games()
        self._games_noted = len(self.schedule.games)
        trained = self._load_state(len(journal))
        if trained is None:
            self._save_state(force=True)
        for number, record in enumerate(journal):
            while self.schedule.round < record.round:
                self._next_round()
            self._count(record, train=number >= (trained or 0))
        memories_round, self.memories = self.directory.memories()
        while self.schedule.round < memories_round:
            self._next_round()
        for number, record in enumerate(self._records):  # the kill may have come between journal and log
            self.directory.write_trial(record, self.memories.get(record.game, []), afresh=number == 0)
        if journal:
            self.directory.logger.info(f"Resumed after {len(journal)} episodes, in round {self.schedule.round}")
        self._end_rounds()

    def _load_state(self, journaled: int) -> int | None:
        """Restore model and learner; returns how many episodes they had learned from, None without a saved state."""
        path = self.directory.trainer
        if not self.learner or not path.exists():
            return None
        checkpoint = load_checkpoint(path)
        if checkpoint["episodes"] > journaled:
            raise CheckpointError(
                f"{path} has learned from {checkpoint['episodes']} episodes, the journal beside it holds {journaled}: "
                "they are not of one run"
            )
        restore_model(self.learner.model, checkpoint, path)
        self.learner.restore(checkpoint)
        return checkpoint["episodes"]

    def _save_state(self, force: bool = False) -> None:
        """Write the trainer's state if it is due."""
        due = force or time.monotonic() - self._state_saved_at >= self.state_interval_s
        if self.learner and due:
            self._save(self.directory.trainer)
            self._state_saved_at = time.monotonic()

    def _save(self, path: Path) -> None:
        save_checkpoint(
            path,
            model=self.learner.model,
            optimizer=self.learner.optimizer,
            scaler=self.learner.scaler,
            round=self.schedule.round,
            training_step=self.learner.training_step,
            episodes=self.episodes,
            random=self.learner.random_state(),
            config=self.config,
            references=self.learner.references.state() if path == self.directory.trainer else None,
        )
