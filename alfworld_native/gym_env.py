"""ALFWorld's games as gymnasium environments: one game at a time, or many side by side in one process.

    import alfworld_native  # registers the environments
    import gymnasium
    env = gymnasium.make("ALFWorldNative-v0", games="generated")
    envs = gymnasium.make_vec("ALFWorldNative-v0", num_envs=256, split="train")

Games are those of an official split (`split`), or `games`: a list of `Game`, or "generated": 100 games made on first
use, without a download, and kept in the project's cache folder (`split="household_heldout"`: 100 in other rooms).

Observations are dictionaries: `text`, and with `image=True` also `image` (uint8, `image_size` × `image_size` × 3).
Actions are commands in the canonical dialect (`put X in/on Y`). The reward is 1.0 for the step that reaches the goal,
otherwise 0.0. `info` holds `admissible_commands`, `won` and `game` (its id). `tell_objects`, `name_by`,
`show_ids` and `camera` ("front" or "close") are those of docs/information.md.

The ids are registered when `alfworld_native` is imported (`registration.py`); with the id
`alfworld_native:ALFWorldNative-v0` gymnasium imports it.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from alfworld_native import choose_games
from alfworld_native.base import Environment, Game, TimeStep, check_commands, check_count
from alfworld_native.by_type import named_by
from alfworld_native.close import CloseEnvironment
from alfworld_native.drawing import frames
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.engine.gamefile import read_games
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import HOUSEHOLD_SPLITS, HOW_TO_GET_GAMES, find_games
from alfworld_native.household.levels import frozen_splits, longest_horizon
from alfworld_native.language.sentences import without_objects
from lavis.common.errors import unknown

GENERATED = 100  # games of each generated split
MAX_TEXT, MAX_COMMAND = 8192, 256  # characters; the longest official observation has about 2,000
# gymnasium's default character set has letters and digits only.
_TEXT = spaces.Text(min_length=0, max_length=MAX_TEXT, charset=string.printable)
_COMMAND = spaces.Text(min_length=0, max_length=MAX_COMMAND, charset=string.printable)


def _option(options: dict[str, Any] | None, key: str) -> Any:
    """What `reset` was given under `key`; EnvironmentFault for another key, which would have no effect."""
    if not isinstance(options, Mapping | None):
        raise EnvironmentFault(f"reset(options={str(options)[:80]}): give a dictionary, such as {{{key!r}: …}}")
    for given in options or {}:
        if given != key:
            raise EnvironmentFault(f"reset knows the option {key!r}, not {given!r}")
    return (options or {}).get(key)


class _Games:
    """The games that are played, and which comes next."""

    def __init__(
        self, games: Sequence[Game] | str | None, split: str | None, data: str | Path | None, shuffle: bool
    ) -> None:
        if isinstance(games, str):
            split = split or HOUSEHOLD_SPLITS[0]
            if games != "generated":
                raise EnvironmentFault(
                    f"games={games!r}: give a list of games, or 'generated'. ALFWorld's official games are played if "
                    f"you leave `games` out and name a split, such as split='valid_seen'; {HOW_TO_GET_GAMES}"
                )
            known = (*HOUSEHOLD_SPLITS, *frozen_splits())
            if split not in known:
                raise EnvironmentFault(unknown("split of generated games", split, known))
            where = None if data is None else str(data)
            self.games = choose_games("household", split, data=where, num_train=GENERATED, num_heldout=GENERATED)
        else:
            if games is not None and not isinstance(games, Iterable):
                raise EnvironmentFault(f"games={str(games)[:80]}: give a list of games, or 'generated'")
            self.games = list(games) if games is not None else find_games(split or "valid_seen", data)
            if strange := [game for game in self.games if not isinstance(game, Game)]:
                raise EnvironmentFault(
                    f"games holds {str(strange[0])[:80]}, no Game: choose_games gives a list of them"
                )
        if not self.games:
            raise EnvironmentFault("the list of games is empty; give at least one game, or a split")
        self._by_id = {game.id: game for game in self.games}
        self._shuffle = shuffle
        self._next = 0

    def rewind(self) -> None:
        """Begin with the first game again."""
        self._next = 0

    def choose(self, rng: np.random.Generator, wanted: Game | str | None = None) -> Game:
        """The game asked for (itself or its id), else a random one, else the next in order."""
        if isinstance(wanted, Game):
            return wanted
        if wanted is not None:
            if not isinstance(wanted, str) or wanted not in self._by_id:
                raise EnvironmentFault(f"game {wanted!r} is none of the {len(self.games)} games of this environment")
            return self._by_id[wanted]
        # By gymnasium's generator, so that `reset(seed=…)` decides the games, too.
        if self._shuffle:
            return self.games[int(rng.integers(len(self.games)))]
        game = self.games[self._next % len(self.games)]
        self._next += 1
        return game


def _observation_space(image: bool, size: int) -> spaces.Dict:
    parts: dict[str, spaces.Space] = {"text": _TEXT}
    if image:
        frames.check_size(size)
        parts["image"] = spaces.Box(0, 255, (size, size, 3), np.uint8)
    return spaces.Dict(parts)


class ALFWorldEnv(gymnasium.Env):
    """One game at a time: `reset(options={"game": game or id})` chooses it, else it is drawn or the next in order."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 2}

    def __init__(
        self,
        *,
        games: Sequence[Game] | str | None = None,
        split: str | None = None,
        data: str | Path | None = None,
        shuffle: bool = True,
        max_steps: int | None = None,
        image: bool = False,
        image_size: int = 224,
        show_ids: bool = True,
        tell_objects: bool = True,
        name_by: str = "number",
        camera: str = "front",
        render_mode: str | None = None,
    ) -> None:
        """`games`, or all of `split` (`valid_seen`) under `data` (see `find_games`); EnvironmentFault for none.

        An episode has `max_steps`, or as many as the games may take: 50, in the harder levels more.
        """
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise EnvironmentFault(f"render_mode {render_mode!r} is unknown: choose one of rgb_array, ansi, None")
        self._games = _Games(games, split, data, shuffle)
        steps = longest_horizon(self._games.games, split or "") if max_steps is None else max_steps
        self._engine = _shown(NativeEnvironment(steps, show_ids), name_by, camera)
        self._tell_objects = tell_objects
        self._image, self._size = image, image_size
        self._game: Game | None = None
        self._text = ""
        self.render_mode = render_mode
        self.observation_space = _observation_space(image, image_size)
        self.action_space = _COMMAND

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begin an episode; `seed` also begins anew the order of the games."""
        super().reset(seed=seed)
        if seed is not None:
            self._games.rewind()
        self._game = self._games.choose(self.np_random, _option(options, "game"))
        return self._seen(self._engine.reset(self._game))

    def step(self, action: str) -> tuple[dict, float, bool, bool, dict]:
        """Carry out a command; truncated at the step limit."""
        step = self._engine.step(action)
        observation, info = self._seen(step)
        # gymnasium's two ends: `terminated` by the task itself, `truncated` by the step limit.
        return observation, float(step.won), step.won, step.done and not step.won, info

    def render(self) -> np.ndarray | str | None:
        """The frame (`rgb_array`) or the last text (`ansi`)."""
        if self.render_mode == "ansi":
            return self._text
        return _frame(self._engine, self._size) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Forget the game."""
        self._engine.close()

    def _seen(self, step: TimeStep) -> tuple[dict, dict]:
        """The observation, and what comes beside it."""
        self._text = step.text if self._tell_objects else without_objects(step.text)
        observation: dict[str, Any] = {"text": self._text}
        if self._image:
            observation["image"] = _frame(self._engine, self._size)
        game = self._game.id if self._game else ""
        return observation, {"admissible_commands": step.admissible_commands, "won": step.won, "game": game}


class ALFWorldVectorEnv(VectorEnv):
    """`num_envs` games side by side in one process; a finished one is replaced in the same step.

    Then the observation is the next game's first, and `infos["final_obs"]`, `infos["final_info"]` hold how the old
    one ended, as gymnasium's `AutoresetMode.SAME_STEP` says. `text` is a tuple of strings, `image` one array.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2, "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        *,
        games: Sequence[Game] | str | None = None,
        split: str | None = None,
        data: str | Path | None = None,
        shuffle: bool = True,
        max_steps: int | None = None,
        image: bool = False,
        image_size: int = 224,
        show_ids: bool = True,
        tell_objects: bool = True,
        name_by: str = "number",
        camera: str = "front",
        render_mode: str | None = None,
    ) -> None:
        """Arguments as `ALFWorldEnv`. All games are read at once (from a cache if there is one)."""
        check_count("num_envs", num_envs)
        if render_mode not in (None, "rgb_array"):
            raise EnvironmentFault(f"render_mode {render_mode!r} is unknown: choose rgb_array or None")
        self.num_envs, self.render_mode = num_envs, render_mode
        self._games = _Games(games, split, data, shuffle)
        # Read once for all engines, because each of them may get any game.
        texts = read_games(game.path for game in self._games.games)
        steps = longest_horizon(self._games.games, split or "") if max_steps is None else max_steps
        engines = (NativeEnvironment(steps, show_ids, texts) for _ in range(num_envs))
        self._engines = [_shown(engine, name_by, camera) for engine in engines]
        self._tell_objects = tell_objects
        self._playing: list[Game] = []
        self._image, self._size = image, image_size
        self.single_observation_space = _observation_space(image, image_size)
        self.single_action_space = _COMMAND
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begin an episode everywhere. `options["games"]` may name the first game of each environment."""
        super().reset(seed=seed)
        if seed is not None:
            self._games.rewind()
        wanted = _option(options, "games")
        if isinstance(wanted, str) or not isinstance(wanted, Iterable | None):
            raise EnvironmentFault(f"options['games'] is {str(wanted)[:80]}: give a list, a game for each environment")
        wanted = [None] * self.num_envs if wanted is None else list(wanted)
        if len(wanted) != self.num_envs:
            raise EnvironmentFault(f"options['games'] names {len(wanted)} games for {self.num_envs} environments")
        self._playing = [self._games.choose(self.np_random, game) for game in wanted]
        steps = [engine.reset(game) for engine, game in zip(self._engines, self._playing, strict=True)]
        return self._observations(steps), self._infos(steps)

    def step(self, actions: Sequence[str]) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Carry out one command in each environment."""
        check_commands(actions, self.num_envs)
        if not self._playing:
            raise EnvironmentFault("no game is loaded; call reset() first")
        steps = [engine.step(action) for engine, action in zip(self._engines, actions, strict=True)]
        won = np.fromiter((step.won for step in steps), bool, self.num_envs)
        done = np.fromiter((step.done for step in steps), bool, self.num_envs)
        # `won` and `done` speak of the old game; `steps` holds the new one's beginning from here on.
        final = self._replace(steps, done) if done.any() else {}
        return self._observations(steps), won.astype(np.float64), won, done & ~won, {**self._infos(steps), **final}

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A frame of each environment."""
        if self.render_mode != "rgb_array":
            return None
        return tuple(_frame(engine, self._size) for engine in self._engines)

    def close_extras(self, **kwargs: Any) -> None:  # `VectorEnv.close` calls it, once
        """Forget the games."""
        for engine in self._engines:
            engine.close()

    def _replace(self, steps: list[TimeStep], done: np.ndarray) -> dict:
        """Begin new games in place of those that are done: changes `steps`; returns how the old ones ended."""
        # gymnasium's form: arrays of objects, with None for each game that goes on.
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final_obs[i] = {"text": self._told(steps[i])}
            if self._image:
                final_obs[i]["image"] = _frame(self._engines[i], self._size)
        infos = self._infos(steps)
        final_info: dict[str, Any] = {
            key: value & done if np.asarray(value).dtype == bool else np.where(done, value, None)
            for key, value in infos.items()
            if key[0] != "_"
        }
        # To each entry belongs a mask that says in which environments it counts.
        final_info |= {f"_{key}": done.copy() for key in final_info}
        for i in np.flatnonzero(done):
            self._playing[i] = self._games.choose(self.np_random)
            steps[i] = self._engines[i].reset(self._playing[i])
        return {"final_obs": final_obs, "_final_obs": done, "final_info": final_info, "_final_info": done}

    def _observations(self, steps: list[TimeStep]) -> dict:
        observations: dict[str, Any] = {"text": tuple(map(self._told, steps))}
        if self._image:
            observations["image"] = np.stack([_frame(engine, self._size) for engine in self._engines])
        return observations

    def _told(self, step: TimeStep) -> str:
        return step.text if self._tell_objects else without_objects(step.text)

    def _infos(self, steps: list[TimeStep]) -> dict:
        everywhere = np.ones(self.num_envs, bool)
        infos = {
            "admissible_commands": _objects([step.admissible_commands for step in steps]),
            "won": np.fromiter((step.won for step in steps), bool, self.num_envs),
            "game": _objects([game.id for game in self._playing]),
        }
        return infos | {f"_{key}": everywhere for key in infos}


def _shown(engine: NativeEnvironment, name_by: str, camera: str) -> Environment:
    """`engine` as it is shown; EnvironmentFault for a `name_by` or a `camera` that does not exist here."""
    if camera not in ("front", "close"):
        raise EnvironmentFault(unknown("camera", camera, ("front", "close")))
    environment = named_by(engine, name_by)
    return CloseEnvironment(environment) if camera == "close" else environment


def _frame(engine: Any, size: int) -> np.ndarray:
    # A copy: the environment keeps its last frame, and an observation belongs to whoever gets it.
    if isinstance(engine, CloseEnvironment):
        return engine.view(size).copy()
    return frames.render(engine.room_state(), size=size, show_ids=engine.show_ids)


def _objects(values: list[Any]) -> np.ndarray:
    """A one-dimensional array of Python objects. One by one: numpy would look into lists for more dimensions."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array
