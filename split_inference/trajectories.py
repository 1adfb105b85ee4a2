"""The client's output: the record of each episode, and the folder that holds all of them.

    OUTPUT_DIR/settings.json                                  what the run depends on; a run with others is refused
               summary.json                                   the table that the program prints at the end
               <task folder>/<trial folder>/trajectory.json   prompts, raw outputs, actions, feedback, success
                                            images/00.jpg     what the model saw before each turn, and at the end

A game's folder is written under another name and renamed when it is complete, so a run that was stopped can continue.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from alfworld_native.language.sentences import TASK_TYPES
from lavis.common.errors import ConfigError, FileError
from lavis.common.files import write_json
from split_inference.socket_connection import Message
from xrl_alignment.play.evaluation.metrics import EpisodeResult, summarise, table
from xrl_alignment.play.rollouts.episode import THOUGHT_FEEDBACK, Episode


class RecordedEpisode:
    """An episode in progress, with what only this program keeps of it: images, raw outputs, one record for each turn.

    A turn is `think`, or `act` and then `hear`. `start` is the server's answer to `init`; `game` names the folder.
    """

    def __init__(self, game: str, start: Message) -> None:
        # A server of an older version does not say `done`: then the episode ends when it is won.
        won = bool(start["goal_satisfied"])
        self.episode = Episode(game=game, text=start["intro"], won=won, done=bool(start.get("done", won)))
        self.turns: list[dict[str, Any]] = []
        self.images: list[bytes] = []  # encoded files; one before the first turn, one more for each action
        self.shown: list[bytes] = []  # one for each turn: a thought leaves the image as it is
        self.image_format = str(start.get("image_format", "jpeg"))  # or "png"
        self.commands: list[str] = []  # what the engine would accept now
        self._start = start
        self._began = time.monotonic()
        self._see(start, "initial_image")

    def over(self, max_turns: int) -> bool:
        """Whether the environment ended the episode, or it has `max_turns` turns, thoughts included."""
        return self.episode.done or len(self.turns) >= max_turns

    def think(self, prompt: str, output: str, thought: str) -> None:
        """A whole turn that the environment does not see."""
        self._begin_turn(prompt, output, thought)
        self.episode.think(thought)
        self.turns[-1] |= {"feedback": THOUGHT_FEEDBACK, "action_success": True, "error_message": ""}

    def act(self, prompt: str, output: str, action: str) -> str:
        """Begin a turn whose action goes to the environment; returns the action."""
        self._begin_turn(prompt, output, action)
        return self.episode.act(action)

    def hear(self, answer: Message) -> None:
        """Complete the turn with the server's answer to `step`."""
        self.turns[-1] |= {key: answer[key] for key in ("feedback", "action_success", "error_message")}
        won = bool(answer["goal_satisfied"])
        self.episode.hear(answer["feedback"], won=won, done=bool(answer.get("done", won)))
        self._see(answer, "current_image")

    def _begin_turn(self, prompt: str, output: str, action: str) -> None:
        # The newest image is the one that the model has just been shown.
        image = self.image_name(len(self.images) - 1)
        self.shown.append(self.images[-1])
        self.turns.append({"prompt": prompt, "image": image, "output": output, "action": action})

    def _see(self, answer: Message, key: str) -> None:
        self.images.append(base64.b64decode(answer[key]))
        self.commands = list(answer.get("admissible_commands", ()))

    def image_name(self, number: int) -> str:
        """The file of image `number`, relative to the game's folder."""
        ending = "png" if self.image_format == "png" else "jpg"
        return f"images/{number:02}.{ending}"

    def record(self) -> dict[str, Any]:
        """The content of `trajectory.json`."""
        start = self._start
        return {
            "game": start.get("game", self.episode.game),
            "task_type": str(start.get("task_type", "")),
            "task_desc": start["task_desc"],
            "intro": start["intro"],
            "success": self.episode.won,
            "turns": self.turns,
            "final_image": self.image_name(len(self.images) - 1),
            "seconds": round(time.monotonic() - self._began, 3),
        }


class TrajectoryFolder:
    """The output folder: which games are finished, and a place for the next one.

    Raises FileError if the folder cannot be read or written, ConfigError if it holds a run with other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._partial = folder / ".partial"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"--output-dir {folder} cannot be made: {error.strerror or error}") from error
        # What a killed run left unfinished; its game is played again.
        shutil.rmtree(self._partial, ignore_errors=True)
        # The first run writes its settings; one that continues it must have the same. A run that has finished no game
        # (a model that could not be loaded) is none.
        file = folder / "settings.json"
        if not file.exists() or not any(folder.rglob("trajectory.json")):
            write_json(file, settings)
            return
        before = _read_json(file)
        other = [key for key in settings if key in before and before[key] != settings[key]]
        if other:
            changes = ", ".join(f"{key} {before.get(key)!r} is now {settings[key]!r}" for key in other)
            raise ConfigError(f"{folder} holds another run ({changes}): give another --output-dir")

    def finished(self, game: str) -> bool:
        """Whether the game's folder is there, and so complete."""
        return (self._game_folder(game) / "trajectory.json").is_file()

    def write(self, recorded: RecordedEpisode) -> None:
        """Write a finished episode's folder: all of it appears at once, or nothing does."""
        partial, folder = self._partial, self._game_folder(recorded.episode.game)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            (partial / "images").mkdir(parents=True)
            for number, image in enumerate(recorded.images):
                (partial / recorded.image_name(number)).write_bytes(image)
            write_json(partial / "trajectory.json", recorded.record())
            folder.parent.mkdir(parents=True, exist_ok=True)
            # A folder that exists is complete: that is how `finished` knows.
            os.replace(partial, folder)
        except FileError:
            raise
        except OSError as error:
            raise FileError(f"{folder} could not be written: {error.strerror or error}") from error

    def summarise(self, games: Sequence[str], failed: Mapping[str, str] | None = None) -> str:
        """Write `summary.json` of those of `games` that are finished or `failed`; returns the table by task type.

        `failed` maps a game that could not be played to the reason: it counts as not solved, as in `evaluate.py`.
        """
        failed = failed or {}
        results = []
        for game in games:
            if game in failed:
                kind = game.split("-", 1)[0]
                kind = kind if kind in TASK_TYPES else ""  # a trajectory file can have any name
                results.append(EpisodeResult(game, kind, won=False, actions=0, rejected=0, fault=failed[game]))
                continue
            if not self.finished(game):
                continue
            record = _read_json(self._game_folder(game) / "trajectory.json")
            # Thoughts are turns, but no actions: the environment has not seen them.
            actions = [turn for turn in record["turns"] if turn["feedback"] != THOUGHT_FEEDBACK]
            rejected = sum(not turn["action_success"] for turn in actions)
            results.append(
                EpisodeResult(record["game"], record["task_type"], record["success"], len(actions), rejected)
            )
        faults = {result.game: result.fault for result in results if result.fault}
        summary = summarise(results) | {"faults": faults}
        # Made of the records on disk, those of earlier calls included: a run that was continued has one table.
        write_json(self._folder / "summary.json", summary)
        lost = f"\ncounted as not solved: {len(faults)} of {len(results)} games could not be played" if faults else ""
        return table(summary) + lost

    def _game_folder(self, game: str) -> Path:
        parts = PurePosixPath(game).parts
        # The name comes from a server: it must not lead out of the output folder, nor into `.partial`.
        if not parts or parts[0] == "/" or ".." in parts or parts[0].startswith("."):
            raise ConfigError(f"the server lists a game {game!r}, which cannot be a folder's name")
        return self._folder.joinpath(*parts)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{file} cannot be read ({error}): delete its folder, or give another --output-dir") from error
    if not isinstance(content, dict):
        raise FileError(f"{file} holds no JSON object: delete its folder, or give another --output-dir")
    return content
