"""The directory of one run: names fixed since the original, ours beside them.

output/<method>/with_bc_dpo-<enable_dpo>-tc-<enable_tc>-<timestamp>/
    running_nb01.log                    everything, one line a step
    logging_results/world.log           a block a round
    logging_results/trial_<round>.log   every episode of a round in words
    logging_results/env_results_trial_<round>.json
    emma_checkpoint_<round>.pth         what trains, after each round
    DONE                                written last
    config.yaml                         the resolved configuration
    tensorboard/                        curves
    report.html
    state/                              what a resume needs
        episodes.jsonl                  the journal: one line a finished episode, the truth about the run
        games.json                      the games in the order of their `env` numbers
        environment.json                what the clients really played: engine and split, hash of the game list
        memories.json                   Reflexion memories by game, and the round that they are for
        metrics.jsonl                   every scalar, for the report
        trainer.pth                     weights and optimiser at some episode of the journal
        expert_calls.jsonl              what was paid for, if the expert is a language model
        server.json                     port and process id
        learner.yaml, learned.jsonl     with run.learner=decoupled: the learner's settings, and what it has learned
        published.safetensors           with run.learner=decoupled: the newest weights for the policy
        learner.lock                    with run.learner=decoupled: held by the learner
        scratch                         the client's folder for pipes and temporary files, with AI2-THOR only
        lock                            held by the process that writes here
        pipeline.lock                   held by the pipeline that runs this phase
        dashboard_link                  while a pipeline runs without a terminal: the link with the token, mode 0600
        buffer/                         shards; one that no journal line names is a killed episode's
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from alfworld_native.games import ids_hash
from lavis.common.errors import EmacError
from lavis.common.files import (
    LockedError,
    locked,
    make_folder,
    naming,
    new_folder,
    remove_temporaries,
    sync,
    whole_lines,
    write_bytes,
    write_json,
    write_text,
)
from lavis.datasets.shards import ShardError, check_shard, open_shard
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.language.plain import plain_texts
from xrl_alignment.agents.language.prompt import trial_text

LOGGER_NAME = "dagger_server_running"  # the original's, part of its log lines
_KINDS: dict[str, Any] = {  # of what a line of the journal holds
    **dict.fromkeys(("round", "env", "actions", "states", "unlabelled"), int),
    **dict.fromkeys(("game", "opening", "shard"), str),
    **dict.fromkeys(("won", "assisted"), bool),
    "steps": list,
    "seconds": int | float,
}


class RunDirectoryError(EmacError, ValueError):
    """A run directory that cannot be used; the text says why."""


@dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode as the journal keeps it.

    `won` is the environment's verdict, `assisted` says that the expert drove at least one step: only an unassisted win
    counts as solved. `actions` went to the environment; `steps` are (text, feedback), thoughts among them. `shard` is
    empty if nothing was stored (evaluation).
    """

    round: int
    env: int
    game: str
    won: bool
    assisted: bool
    actions: int
    opening: str
    steps: list[tuple[str, str]]
    shard: str
    seconds: float
    states: int = 0  # in which the expert was asked; 0 in journals of older versions
    unlabelled: int = 0  # of them, those for which it had no label

    @property
    def solved(self) -> bool:
        """The policy won by itself."""
        return self.won and not self.assisted

    def trace(self) -> EpisodeTrace:
        """The episode as a reflector reads it."""
        steps = tuple((action, feedback) for action, feedback in self.steps)  # JSON has given lists
        return EpisodeTrace(self.game, self.game.partition("-")[0], self.opening, steps, self.won)


def new_run_directory(output_dir: Path | str, *, enable_dpo: bool, enable_tc: bool) -> Path:
    """Create `<output_dir>/with_bc_dpo-…-<timestamp>` (with a number behind it if that exists) and return it."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return new_folder(Path(output_dir) / f"with_bc_dpo-{enable_dpo}-tc-{enable_tc}-{stamp}")


def forget_server(path: Path | str) -> None:
    """Remove the port and process id of a run's last server; RunDirectoryError if a process is writing there now.

    Nobody can announce itself meanwhile: this holds the lock that a server takes first.
    """
    state = Path(path) / "state"
    make_folder(state)
    with closing(_locked(state / "lock")):
        (state / "server.json").unlink(missing_ok=True)


def round_block(round: int, *, solved: int, newly_solved: int, total: int, seconds: float) -> str:
    """A round in `world.log`, to the letter as in the original's logs; `solved` counts all rounds so far."""
    return (
        f"\n-----\nROUND: {round}\nSUCCESS: {solved}\nADDITIONAL SUCCESS: {newly_solved}\nFAIL: {total - solved}\n"
        f"TOTAL: {total}\nACCURACY: {solved / total:.2f}\nTIME: {seconds:.2f} s\n-----\n\n"
    )


def newest_checkpoint(directory: Path | str) -> Path | None:
    """The `emma_checkpoint_<round>.pth` of the latest round in a run directory, or None."""
    # By number: as text, round 10 would come before round 9. Other endings are a user's own copies.
    rounds = {
        path.stem.removeprefix("emma_checkpoint_"): path for path in Path(directory).glob("emma_checkpoint_*.pth")
    }
    newest = max((round for round in rounds if round.isdecimal()), key=int, default="")
    return rounds.get(newest)


class RunPaths:
    """Where a run's files are, and the content of those that are replaced as a whole; writes nothing."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.results = self.path / "logging_results"
        self.state = self.path / "state"
        self.buffer = self.state / "buffer"
        self.journal = self.state / "episodes.jsonl"
        self.trainer = self.state / "trainer.pth"
        self.expert_calls = self.state / "expert_calls.jsonl"
        self.learner_settings = self.state / "learner.yaml"
        self.learned = self.state / "learned.jsonl"
        self.published = self.state / "published.safetensors"

    def checkpoint(self, round: int) -> Path:
        """Path of the checkpoint after `round`."""
        return self.path / f"emma_checkpoint_{round}.pth"

    def trial_log(self, round: int) -> Path:
        """Path of the log with every episode of `round` in words."""
        return self.results / f"trial_{round}.log"

    def round_results(self, round: int) -> Path:
        """Path of the results of `round`: for each game whether it is solved, and the memory for the next round."""
        return self.results / f"env_results_trial_{round}.json"

    def environments(self) -> list[str]:
        """Where the run's games were played so far, as `engine split`; [] in a run of an older version."""
        content = self._read_json(
            self.state / "environment.json",
            {},
            lambda content: isinstance(content, dict) and is_texts(content.get("environments", [])),
        )
        return content.get("environments", [])

    def memories(self) -> tuple[int, dict[str, list[str]]]:
        """The newest saved memories and the round that they are for; (0, {}) before the first round's end.

        Older versions stored a language model's texts as they came, so texts are made `plain`.
        """

        def fits(content: Any) -> bool:
            texts = content.get("memories") if isinstance(content, dict) else None
            if not isinstance(texts, dict) or not all(map(is_texts, texts.values())):
                return False
            return isinstance(content.get("round"), int) and content["round"] >= 0

        content = self._read_json(self.state / "memories.json", {"round": 0, "memories": {}}, fits)
        return content["round"], plain_texts(content["memories"])

    def record(self, line: str | bytes) -> EpisodeRecord:
        """What a line of the journal says."""
        try:
            record = EpisodeRecord(**json.loads(line))
            for name, kind in _KINDS.items():
                value = getattr(record, name)
                if not isinstance(value, kind) or (kind is int and value < 0):
                    raise ValueError(f"{name} is {ascii(value):.40}")
            if not all(is_texts(step) and len(step) == 2 for step in record.steps):
                raise ValueError("steps are not pairs of texts")
            if "/" in record.shard:  # it would lead out of the buffer's folder
                raise ValueError(f"shard {ascii(record.shard):.80} is not a file's name")
            return record
        except (ValueError, TypeError, RecursionError) as error:
            raise RunDirectoryError(f"{self.journal} is damaged: {error}") from error

    def _read_json(self, path: Path, otherwise: Any, fits: Callable[[Any], bool]) -> Any:
        """What a file holds, else `otherwise`; RunDirectoryError if that is no JSON, or is not what `fits`."""
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else otherwise
        except (ValueError, RecursionError) as error:
            raise RunDirectoryError(f"{path} is damaged: {error}") from error
        if not fits(content):
            raise RunDirectoryError(f"{path} is damaged: it holds other things than this program writes there")
        return content


class RunDirectory(RunPaths):
    """Writes and reads a run's files; holds no opinion on what a run does.

    Only one process at a time may: a second one gets a RunDirectoryError.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        for folder in (self.results, self.buffer):
            make_folder(folder)
        # The lock first: what follows removes files that another process may be writing.
        self._lock = _locked(self.state / "lock")
        for folder in (self.path, self.results, self.state, self.buffer):
            remove_temporaries(folder)
        for folder in (self.path.parent, self.path, self.state):
            sync(folder)  # a journal is worth nothing in a folder that a power loss takes away
        # Here: torch takes seconds to import, and many commands only read directories.
        from torch.utils.tensorboard import SummaryWriter

        self._tensorboard = SummaryWriter(str(self.path / "tensorboard"))
        cut_half_line(self.state / "metrics.jsonl")
        # Line by line: what a killed run has lost is never needed again, its curves are.
        self._metrics = open(self.state / "metrics.jsonl", "a", buffering=1, encoding="utf-8")
        self._saved_games: tuple[list[str], list[str]] = ([], [])  # games and environments
        # Not by `getLogger`: the run's lines belong into its own log, not into the program's, and a program may open
        # several runs after each other.
        self.logger = logging.Logger(LOGGER_NAME, logging.INFO)
        self._handler = logging.FileHandler(self.path / "running_nb01.log", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
        self.logger.addHandler(self._handler)

    def close(self) -> None:
        """Flush and close what is open."""
        self.logger.removeHandler(self._handler)
        self._handler.close()
        self._metrics.close()
        with suppress(FileNotFoundError):  # somebody has removed or renamed the directory: nothing is left to flush
            self._tensorboard.close()
        self._lock.close()

    def check_place(self) -> None:
        """RunDirectoryError if somebody has removed or renamed the directory since it was opened.

        Files written from then on would begin another run under the old name, without the episodes of before.
        """
        try:
            there = os.path.samestat(os.stat(self.state / "lock"), os.fstat(self._lock.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise self.gone()

    def gone(self) -> RunDirectoryError:
        """The error of a run whose directory was taken away while it was in progress."""
        return RunDirectoryError(
            f"{self.path} was removed or renamed while the run was writing to it: nothing more can be kept. If it was "
            "renamed, continue with --resume and its new name"
        )

    @property
    def done(self) -> bool:
        """All rounds have ended."""
        return (self.path / "DONE").exists()

    def mark_done(self) -> None:
        """Write the DONE file that pipelines wait for."""
        write_bytes(self.path / "DONE", b"done\n")

    # --- the journal -----------------------------------------------------------------------------------------------

    def append_episode(self, record: EpisodeRecord) -> None:
        """Add a finished episode to the journal, on disk before this returns."""
        new = not self.journal.exists()
        with naming(self.journal), open(self.journal, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if new:  # the file's name is on disk only when its folder is
            sync(self.state)

    def episodes(self) -> list[EpisodeRecord]:
        """The journal; a half-written last line (killed while writing) is cut off, on disk as well."""
        cut_half_line(self.journal)
        lines = self.journal.read_bytes().splitlines() if self.journal.exists() else []
        return [self.record(line) for line in lines]

    def lost_shards(self, records: Sequence[EpisodeRecord]) -> dict[int, str]:
        """Which of `records` name a shard that is missing, damaged or another game's, and what is wrong."""
        lost: dict[int, str] = {}
        for number, record in enumerate(records):
            if not record.shard:
                continue
            path = self.buffer / record.shard
            try:
                check_shard(path)
                if (game := open_shard(path).game) not in ("", record.game):  # empty in shards of older versions
                    lost[number] = f"shard {path} holds another game, {game}"
            except ShardError as error:
                lost[number] = str(error)
        return lost

    def rewrite_episodes(self, records: Sequence[EpisodeRecord]) -> None:
        """Make `records` the journal; what it was is kept beside it, as `episodes.jsonl.<number>`."""
        # A copy under a name of its own, so that nothing that was played is ever gone for good.
        path, number = self.journal, 1
        while (old := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        before = path.read_bytes()
        write_bytes(old, before)
        text = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        write_text(path, text)

    def save_games(self, games: Sequence[str], environments: Sequence[str] = ()) -> None:
        """Keep the run's games in their order, and in which `environments` (`engine split`) they are played.

        Nothing is written if both are what was written last.
        """
        if (list(games), list(environments)) == self._saved_games:
            return
        write_json(self.state / "games.json", list(games))
        # Without any, what an earlier server was told stays.
        if environments:
            content = {"environments": list(environments), "games_hash": ids_hash(games)}
            write_json(self.state / "environment.json", content)
        self._saved_games = (list(games), list(environments))

    def games(self) -> list[str]:
        """The run's games in their order, as far as they are known."""
        return self._read_json(self.state / "games.json", [], is_texts)

    def save_memories(self, round: int, memories: dict[str, list[str]]) -> None:
        """Keep the memories with which `round` starts."""
        write_json(self.state / "memories.json", {"round": round, "memories": memories})

    # --- logs ------------------------------------------------------------------------------------------------------

    def scalar(self, tag: str, value: float, step: int) -> None:
        """One point of a curve, for TensorBoard and the report."""
        self._tensorboard.add_scalar(tag, value, step)
        with naming(self._metrics.name):
            self._metrics.write(json.dumps({"step": step, "tag": tag, "value": value, "time": time.time()}) + "\n")

    def write_trial(self, record: EpisodeRecord, memories: Sequence[str]) -> None:
        """Append an episode in words to `trial_<round>.log` (Reflexion's format)."""
        history = trial_text("", record.opening, memories, record.steps)
        status = "OK" if record.solved else "FAIL"  # a win with the expert's help is none
        path = self.trial_log(record.round)
        with naming(path), open(path, "a", encoding="utf-8") as file:
            file.write(f"\n#####\n\nEnvironment #{record.env}:\n{history}\nSTATUS: {status}\n\n#####\n")

    def end_round(
        self,
        round: int,
        *,
        results: dict[str, dict[str, Any]],
        block: str,
        scalars: Mapping[str, float],
        memories: dict[str, list[str]],
    ) -> None:
        """Write what a finished round leaves: `results`, its `block` in `world.log`, its curves, and `memories`.

        `results` are `env_<i>` → game, type, is_success, path_length, memory. The block begins as `round_block`. The
        memories, those of the next round, are the commit: a run that is killed before writes all of this once more.
        """
        write_json(self.round_results(round), results)
        # One write for the whole block, and not twice: a kill would leave half of it for ever.
        world = self.results / "world.log"
        if not (world.exists() and f"\nROUND: {round}\n" in world.read_text(encoding="utf-8")):
            with naming(world), open(world, "a", encoding="utf-8") as file:
                file.write(block)
        for name, value in scalars.items():
            self.scalar(name, value, round)
        self.save_memories(round + 1, memories)


def is_texts(content: Any) -> bool:
    """Whether `content`, read from JSON, is a list of texts."""
    return isinstance(content, list) and all(isinstance(text, str) for text in content)


def cut_half_line(path: Path) -> None:
    """Cut off what stands after the last newline of a log: its writer was killed while it wrote."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = whole_lines(content)
    if whole != content:
        write_bytes(path, whole)


def _locked(path: Path) -> TextIO:
    try:
        return locked(path, path.parent.parent)
    except LockedError as error:
        raise RunDirectoryError(str(error)) from error
