"""Household games as an OpenEnv environment: server, client and messages (extra `openenv`).

    app = make_app(choose_games("household", "household_train", num=64))      # examples/openenv/server/app.py

    with HouseholdClient(base_url="http://localhost:8000").sync() as client:
        result = client.reset(seed=0)
        result = client.step(Command(command=result.observation.admissible_commands[0]))

Every session has a game of its own. `reset(seed=…)` draws a game by the seed, `reset(game=…)` takes the one with that
id; without either the games come in order. The reward is 1 for the step that reaches the goal, else 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from alfworld_native.base import Game, TimeStep
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.levels import longest_horizon
from lavis.common.errors import missing_extra, unknown
from xrl_alignment.adapters.access import KeyedApp
from xrl_alignment.agents.language.plain import plain

try:
    from openenv.core import EnvClient
    from openenv.core.client_types import StepResult
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment as OpenEnvironment
    from openenv.core.env_server.types import Action, Observation, State
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse
except ModuleNotFoundError as error:
    raise missing_extra("openenv", error) from None


RESET = ("seed", "episode_id", "game")  # what `reset` takes
MAX_NAME = 512  # characters of a game's id that are compared with all others, to say what was meant


class Command(Action):
    """One command, for instance `go to desk 1`."""

    command: str


class HouseholdObservation(Observation):
    """The engine's text and what can be done now."""

    text: str
    admissible_commands: list[str]
    won: bool = False
    game: str = ""  # the id


class HouseholdSession(OpenEnvironment):
    """The game of one session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, games: Sequence[Game], following: Callable[[], Game], max_steps: int | None = None) -> None:
        """`games` are those that a client may ask for, `following()` is the next one if it asks for none.

        An episode ends after `max_steps` commands, or those of the hardest of `games`.
        """
        super().__init__()
        self._games, self._following = {game.id: game for game in games}, following
        self._engine = NativeEnvironment(longest_horizon(games) if max_steps is None else max_steps)
        self._state = State(episode_id=None, step_count=0)
        self._game = ""

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, game: str | None = None, **others: Any
    ) -> HouseholdObservation:
        """Begin the game with the id `game`, else one drawn by `seed`, else the next; EnvironmentFault for `others`."""
        if others:
            raise EnvironmentFault(unknown("argument of reset", str(next(iter(others)))[:MAX_NAME], RESET))
        if not isinstance(game, str | None) or not isinstance(seed, int | None):
            raise EnvironmentFault("a game is named by its id, a text, and drawn by a seed, a whole number")
        if game is not None and game not in self._games:
            raise EnvironmentFault(unknown("game", game[:MAX_NAME], self._games))
        if game is not None:
            chosen = self._games[game]
        elif seed is not None:
            # A generator of its own: the same seed draws the same game in every session.
            chosen = random.Random(seed).choice(list(self._games.values()))
        else:
            chosen = self._following()
        self._game = chosen.id
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return self._observation(self._engine.reset(chosen))

    def step(self, action: Command, timeout_s: float | None = None, **_: Any) -> HouseholdObservation:
        """Carry out a command."""
        now = self._engine.step(action.command)
        self._state.step_count += 1
        return self._observation(now)

    @property
    def state(self) -> State:
        """The episode's id and the number of its steps."""
        return self._state

    def _observation(self, now: TimeStep) -> HouseholdObservation:
        return HouseholdObservation(
            text=now.text,
            admissible_commands=now.admissible_commands,
            won=now.won,
            game=self._game,
            done=now.done,
            reward=float(now.won),
        )


class HouseholdClient(EnvClient[Command, HouseholdObservation, State]):
    """A session with the server; asynchronous, `.sync()` gives the blocking one."""

    def _step_payload(self, action: Command) -> dict[str, Any]:
        return {"command": action.command}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[HouseholdObservation]:
        # OpenEnv sends reward and end beside the observation, whose class has them, too.
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = HouseholdObservation(**{**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


def make_app(games: Sequence[Game], *, max_sessions: int = 64, max_steps: int | None = None, key: str = "") -> Any:
    """The server as an ASGI application for uvicorn, with at most `max_sessions` at once.

    Other machines are answered only with `key` in their address, `http://host:8000/<key>` (`access.KeyedApp`). How many
    connections there may be is for the server to say: examples/openenv/server/app.py limits them.
    """
    if not games:
        raise EnvironmentFault("the list of games is empty; give at least one game")
    following = itertools.cycle(games).__next__  # shared: the sessions together go through the games in order
    app = create_fastapi_app(
        lambda: HouseholdSession(games, following, max_steps),
        Command,
        HouseholdObservation,
        max_concurrent_envs=max_sessions,
    )
    # Sessions that are made by a request alone hold their places for ever; and there are no tools to call in them.
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/mcp"]
    app.add_route("/mcp", _no_tools, methods=["POST"])
    # A request for what is not there is the client's mistake; without a handler the log had a traceback for each.
    app.add_exception_handler(EnvironmentFault, lambda request, error: PlainTextResponse(plain(f"{error}\n"), 400))
    return KeyedApp(app, key)


def _no_tools(request: Request) -> JSONResponse:
    """JSON-RPC's error for whatever is asked at `/mcp`; `openenv validate` wants an answer in this form."""
    error = {"code": -32601, "message": "method not found: this environment has no tools; its sessions are at /ws"}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})
