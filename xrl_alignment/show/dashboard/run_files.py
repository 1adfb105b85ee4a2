"""What a run directory says about its run, read while the run writes it; files may be missing, damaged or cut short."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from xrl_alignment.runs.tail import Tail
from xrl_alignment.settings.schema import EnvironmentConfig
from xrl_alignment.show.dashboard.curves import Curve, RunningShare
from xrl_alignment.show.dashboard.replay import agreement
from xrl_alignment.show.report.run_data import parsed_settings, told_to_agent

# Of a journal that can be shown; a larger number is damage. Every round has a character for each game up to the highest
# number in it, so a short journal may ask for a large grid: 10,000 lines for a gigabyte, sent anew at each look.
MAX_ROUNDS, MAX_GAMES, MAX_CELLS = 10_000, 100_000, 1_000_000
# What a line of any text can raise: JSON nested too deeply and infinite numbers (1e999) included.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
# Figure, and name of the curve in it; by episode, and those that come from metrics.jsonl.
_SO_FAR, _IN_ROUND = ("success", "games solved so far"), ("success", "of the unsolved games played in the round")
_AGREEMENT = ("agreement", "same action as the expert")
_CURVES = {
    "train/loss": ("loss", "loss"),
    "train/chosen_reward": ("rewards", "chosen"),
    "train/rejected_reward": ("rewards", "rejected"),
    "expert/cost_usd": ("cost", "US dollars"),
}


@dataclass(frozen=True)
class Played:
    """One finished episode: its place in the journal, and what the overview needs of it."""

    round: int
    env: int
    start: int  # of its line, bytes from the journal's beginning
    size: int
    shard: str
    unlabelled: int


class Round(NamedTuple):
    """Games of a round: played, solved by the policy alone, solved up to its end, all of the run; is it finished?"""

    played: int
    solved: int
    solved_so_far: int
    games: int
    finished: bool


class RunFiles:
    """Follows the files of `path`; `refresh` reads what is new. Nothing is written, and nothing is locked.

    Memory: some bytes for each episode, curves of bounded length, and a grid of at most MAX_CELLS characters.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "state" / "episodes.jsonl"
        self.buffer = path / "state" / "buffer"
        self._journal = Tail(self.journal)
        self._metrics = Tail(path / "state" / "metrics.jsonl")
        self._json_files: dict[str, tuple[int, Any]] = {}  # when it was written, content
        self._damaged: dict[str, str] = {}  # by file
        self._told: tuple[int, EnvironmentConfig | None] = (0, None)  # when the settings were written; what they say
        self._forget_episodes()
        self._by_step = {key: Curve() for key in _CURVES.values()}

    @property
    def ended(self) -> bool:
        """Whether all rounds have ended."""
        return (self.path / "DONE").exists()

    @property
    def games(self) -> list[str]:
        """The games in the order of their `env` numbers."""
        games = self._json("games.json", [])
        return [str(game) for game in games] if isinstance(games, list) else []

    @property
    def memories(self) -> dict[str, list[str]]:
        """Memories by game, as the newest round began with them."""
        content = self._json("memories.json", {})
        memories = content.get("memories") if isinstance(content, dict) else None
        if not isinstance(memories, dict):
            return {}
        return {game: [str(text) for text in texts] for game, texts in memories.items() if isinstance(texts, list)}

    @property
    def environments(self) -> list[str]:
        """Where the games are played: `engine split`."""
        content = self._json("environment.json", {})
        found = content.get("environments") if isinstance(content, dict) else None
        return [str(name) for name in found] if isinstance(found, list) else []

    @property
    def _settings(self) -> dict[str, Any]:
        """The section `run:` of the settings; {} if they cannot be read."""
        try:
            section = parsed_settings((self.path / "config.yaml").read_text("utf-8", "replace")).get("run")
        except OSError:
            return {}
        return section if isinstance(section, dict) else {}

    @property
    def told(self) -> EnvironmentConfig | None:
        """What the agent is told and shown, None if nobody knows; read again when the settings have changed."""
        try:
            written = (self.path / "config.yaml").stat().st_mtime_ns
        except OSError:
            return None
        if self._told[0] != written:
            self._told = written, told_to_agent(self.path)
        return self._told[1]

    @property
    def tell_objects(self) -> bool:
        """Whether the agent's text names objects; True if nobody knows."""
        return self.told is None or self.told.tell_objects

    def refresh(self, may_continue: Callable[[], bool] = lambda: True) -> None:
        """Read what is new. Shards are read as long as `may_continue`, the others next time."""
        if self._journal.began_anew():
            self._forget_episodes()
        for start, line in self._journal.lines():
            self._read(self.journal.name, start, line, self._add_episode)
        if self._metrics.began_anew():
            self._by_step = {key: Curve() for key in _CURVES.values()}
        for start, line in self._metrics.lines():
            self._read("metrics.jsonl", start, line, self._add_scalar)
        while self._unread and may_continue():
            number, played = self._unread.popleft()
            counted = agreement(self.buffer, played.shard, played.unlabelled)
            if counted is None:
                what = f"state/buffer/{played.shard[:80]} is missing or cannot be read: no frames of it"
                self._damaged["buffer"] = what
            elif (share := self._agreement.add(*counted)) is not None:
                self._agreement_curve.add(number, share)

    def episode(self, round: int, env: int) -> Played | None:
        """A finished episode, None if there is none."""
        return self._episodes.get((round, env))

    def grid(self) -> list[str]:
        """For each round a character for each game: S solved, W won with the expert's help, F failed, or a blank."""
        return [marks.decode() for marks in self._marks]

    def rounds(self) -> list[Round]:
        """What each round has come to so far."""
        total = len(self.games) or max(map(len, self._marks), default=0)
        rounds, solved = [], 0
        for number, marks in enumerate(self._marks):
            played, won = len(marks) - marks.count(b" "), marks.count(b"S")
            # Every game that was unsolved when the round began has been played, or the run has gone on to the next.
            finished = played >= total - solved or number + 1 < len(self._marks) or self.ended
            solved += won
            rounds.append(Round(played, won, solved, total, finished))
        return rounds

    def progress(self) -> dict[str, Any]:
        """The head of a run that no process of this one plays, under the names of the server's `/status`."""
        rounds, settings = self.rounds(), self._settings
        facts: dict[str, Any] = {"episodes": len(self._episodes)}
        if rounds:
            last = rounds[-1]
            # Games that were solved before count as played, as in `/status`.
            played = last.played + last.solved_so_far - last.solved
            planned = settings.get("num_rounds")
            facts |= {"round": len(rounds) - 1, "num_rounds": planned if type(planned) is int else len(rounds)}
            facts |= {"num_envs": last.games, "played_in_round": played, "solved": last.solved_so_far}
        if (step := self._by_step[_CURVES["train/loss"]].last) is not None:
            facts["training_step"] = int(step) + 1
        return facts

    @property
    def title(self) -> str:
        """What is trained, and which of how many phases it is if a pipeline has said so: `phase 3 of 4: DPO`."""
        dpo = self._settings.get("enable_dpo")
        method = "DPO" if dpo is True else "BC" if dpo is False else ""
        try:
            phase = (self.path / "state" / "phase").read_text(encoding="utf-8", errors="replace").strip()[:40]
        except OSError:
            phase = ""
        return ": ".join(filter(None, (phase, method)))

    @property
    def reading(self) -> int:
        """How many episodes' shards are still to be read."""
        return len(self._unread)

    def figures(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """The points of each curve, by figure and name; without the empty ones."""
        figures: dict[str, dict[str, list[tuple[float, float]]]] = {}
        # Success is counted by finished round: short won games end first, so a share of the last episodes would begin
        # at 1 in each round and fall.
        so_far, in_round = Curve(), Curve()
        for number, round in enumerate(self.rounds(), 1):
            if round.finished and round.games and round.played:
                so_far.add(number, round.solved_so_far / round.games)
                in_round.add(number, round.solved / round.played)
        success = {_SO_FAR: so_far, _IN_ROUND: in_round}
        for (figure, name), curve in {**success, _AGREEMENT: self._agreement_curve, **self._by_step}.items():
            if points := curve.points():
                figures.setdefault(figure, {})[name] = points
        return figures

    def notices(self) -> list[str]:
        """What is missing or damaged, in sentences."""
        missing = [
            f"state/{name} is missing: {what}"
            for name, what in (
                ("episodes.jsonl", "no episode has ended yet, or the folder is no run directory"),
                ("metrics.jsonl", "there are no curves of losses, rewards and cost"),
                ("games.json", "games are shown by their number"),
            )
            if not (self.path / "state" / name).exists()
        ]
        return [*missing, *self._damaged.values()]

    # --- reading ---------------------------------------------------------------------------------------------------

    def _forget_episodes(self) -> None:
        self._episodes: dict[tuple[int, int], Played] = {}
        self._marks: list[bytearray] = []
        self._cells = 0  # in all of them
        self._unread: deque[tuple[int, Played]] = deque()  # episodes whose shards are still to be read, numbered
        self._numbered = 0
        self._agreement, self._agreement_curve = RunningShare(), Curve()

    def _read(self, file: str, start: int, line: bytes, add: Callable[[dict[str, Any], int, int], None]) -> None:
        """Take in one line; one that cannot be read is left out, and the page says so."""
        try:
            add(json.loads(line), start, len(line))
        except _UNREADABLE as error:
            what = f"{type(error).__name__}: {error}"[:100]
            self._damaged[file] = f"state/{file} has a line that cannot be read, at byte {start} ({what})"

    def _add_episode(self, record: dict[str, Any], start: int, size: int) -> None:
        round, env = int(record["round"]), int(record["env"])
        # A number that is damage must not cost memory: the grid has a cell for every game up to the highest number.
        if not (0 <= round < MAX_ROUNDS and 0 <= env < MAX_GAMES):
            raise ValueError(f"round {round}, env {env}")
        marks = len(self._marks[round]) if round < len(self._marks) else 0
        if (grown := self._cells + max(0, env + 1 - marks)) > MAX_CELLS:
            raise ValueError(f"round {round}, env {env}: the games by round are more than {MAX_CELLS}")
        self._cells = grown
        won, solved = bool(record["won"]), bool(record["won"]) and not record.get("assisted", False)
        shard, unlabelled = str(record.get("shard", "")), int(record.get("unlabelled", 0))
        played = Played(round, env, start, size, shard, unlabelled)
        self._episodes[round, env] = played
        while len(self._marks) <= round:
            self._marks.append(bytearray())
        self._marks[round].extend(b" " * (env + 1 - len(self._marks[round])))
        self._marks[round][env] = ord("S" if solved else "W" if won else "F")
        self._numbered += 1
        if played.shard:
            self._unread.append((self._numbered, played))

    def _add_scalar(self, line: dict[str, Any], start: int, size: int) -> None:
        if key := _CURVES.get(line["tag"]):
            # Rounds are counted from 0 in files and from 1 on pages; training steps are not.
            first = 1 if line["tag"].startswith("expert/") else 0
            self._by_step[key].add(float(line["step"]) + first, float(line["value"]))

    def _json(self, name: str, otherwise: Any) -> Any:
        """The content of a small file, read again when it has changed."""
        path = self.path / "state" / name
        try:
            written = path.stat().st_mtime_ns
            if self._json_files.get(name, (0, None))[0] != written:
                self._json_files[name] = (written, json.loads(path.read_text(encoding="utf-8")))
                self._damaged.pop(name, None)
        except FileNotFoundError:
            return otherwise
        except (OSError, ValueError, RecursionError) as error:
            self._damaged[name] = f"state/{name} cannot be read: {type(error).__name__}"
            return otherwise
        return self._json_files[name][1]
