"""A client's worker: plays the games that the server hands out, or (wire v1) all games in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from alfworld_native.base import Game
from alfworld_native.errors import EnvironmentFault
from xrl_alignment.common.choices import CLIENT_EXPERTS, LABELS_FROM_CLIENT
from xrl_alignment.play.client.connection import ClientError, RetryingConnection, ServerLost, SessionLost
from xrl_alignment.play.client.player import ClientPlayer, EnvironmentDescription
from xrl_alignment.play.client.report import EpisodeTally
from xrl_alignment.play.client.session import ClientSession
from xrl_alignment.play.rollouts.base import JobOutcome, RolloutExecutor
from xrl_alignment.wire import v1
from xrl_alignment.wire.messages import Observation, ProtocolError

_V1_PATIENCE_S = 10.0  # v1 cannot tell a server that has finished from one that broke down
_LOSSES = 3  # of a worker's environment in a row: then something is wrong with all of them
_LONG_WAIT_S = 10.0  # for other clients' games, before a worker reports it
_OTHERS_PLAY = (
    "the other games of this round are with other clients: waiting for them "
    "(the server reassigns a dead client's games after server.session_timeout_s)"
)


class EnvironmentLost(Exception):
    """An environment's process ended or hung during a game; the text says which."""


@dataclass
class ClientWorker:
    """Plays games through `executor`, one at a time, and asks the server for every action."""

    connection: RetryingConnection
    executor: RolloutExecutor
    player: ClientPlayer
    games: Sequence[Game]
    split: str
    view: str
    image_format: str
    tally: EpisodeTally
    _losses: int = 0  # in a row
    _labels_for: str = ""  # the server's expert.name, if the labels come from here
    _given_up: bool = False  # the game that is being played: the server gave it up

    def work_v2(self) -> None:
        """Ask for work until the server has none; start a new session when the server has lost the old one."""
        try:
            # An environment's process may be lost while it starts, as later in a game: it is replaced and asked again.
            about: EnvironmentDescription | None = None
            while about is None:
                with contextlib.suppress(EnvironmentLost):
                    about = self._value(self.executor.call(ClientPlayer.describe, self.player))
            while not self._work_in_session(about):
                self.tally.report.say("the server has lost this session: starting a new one")
        finally:
            self.executor.close()

    def work_v1(self, num_rounds: int | None) -> None:
        """Play all games in order, round after round, until `num_rounds` are over or the server is gone."""
        self.tally.report.expect(len(self.games) * num_rounds if num_rounds else 0)
        rounds = 0
        try:
            while num_rounds is None or rounds < num_rounds:
                for game in self.games:
                    self._play(game, self._ask_v1)
                rounds += 1
        except ServerLost:
            if not self.tally.episodes and not rounds:
                url = self.connection.url
                raise ClientError(f"the server at {url} went away before the first episode ended") from None
            self.tally.report.say(f"the server has gone after {rounds} whole rounds")
        except EnvironmentLost as lost:
            raise EnvironmentFault(f"an environment's process {lost}: wire v1 cannot give its game back") from None
        finally:
            self.executor.close()

    # --- wire v2 ---------------------------------------------------------------------------------------------------

    def _work_in_session(self, about: EnvironmentDescription) -> bool:
        """True if the server has no more work, False if it has lost the session."""
        session = ClientSession(self.connection, self.image_format)
        by_id = {game.id: game for game in self.games}
        try:
            self._greet(session, about)
            waited_s = 0.0
            while (work := session.ask_for_work())["kind"] != "finished":
                if work["kind"] == "wait":
                    # Other sessions play the round's last games: until these end there is nothing to hand out.
                    waited_s += float(work["seconds"])
                    if waited_s >= _LONG_WAIT_S:
                        self.tally.report.say_once(_OTHERS_PLAY)
                    self.connection.pause(float(work["seconds"]))
                    continue
                waited_s = 0.0
                game = by_id.get(work.get("game", ""))
                if game is None:
                    raise ClientError(f"the server hands out a game that was not offered: {work.get('game')!r}")
                try:
                    self._play(game, partial(self._ask_v2, session, env=work["env"], round=work["round"]))
                except EnvironmentLost as lost:
                    self.tally.report.say(f"an environment's process {lost}: its game goes back to the server")
                    # The new session greets before the old one leaves: a server without sessions may end.
                    left, session = session, ClientSession(self.connection, self.image_format)
                    self._greet(session, about)
                    left.bye()
            self.tally.run_is_over(work.get("solved"), work.get("games"))
            return True
        except SessionLost:
            return False
        finally:
            session.bye()

    def _greet(self, session: ClientSession, about: EnvironmentDescription) -> None:
        games = [game.id for game in self.games]
        welcome = session.hello(games, about.name, self.split, self.view)
        wanted = welcome.get("expert") or ""
        if wanted == "client" and not about.advises:
            raise ClientError(
                "the server's expert.name=client takes the labels from here: start the client with --expert explorer, "
                "handcoded, planner or module:Class"
            )
        if wanted in CLIENT_EXPERTS and not about.advises:
            raise ClientError(
                f"the server's expert.name={wanted} runs beside the environment: start the client with --expert "
                f"{wanted}"
            )
        self._labels_for = wanted if wanted in LABELS_FROM_CLIENT else ""
        self.tally.report.expect(welcome.get("num_rounds", 1) * welcome.get("num_envs", len(games)))

    def _ask_v2(self, session: ClientSession, observation: Observation, *, env: int, round: int) -> str | None:
        labelled = observation.information.get("expert_action") or observation.information.get("expert_thought")
        if self._labels_for and observation.task_type and not observation.done and not labelled:
            raise ClientError(
                f"the expert beside the environment has no label for the first step of {observation.task_type}, and "
                f"the server's labels come from here (expert.name={self._labels_for}): the model would learn its own "
                "actions. Look at the expert (--expert)"
            )
        answer = session.ask_for_action(observation, env=env, round=round)
        if reason := answer.get("reason"):
            self._given_up = True
            self.tally.report.say(f"the server gave the game up: {reason}")
        return answer.get("action")

    # --- wire v1 ---------------------------------------------------------------------------------------------------

    def _ask_v1(self, observation: Observation) -> str | None:
        connected = self.connection.bytes_sent > 0
        reply = self.connection.exchange(
            v1.encode(observation),
            "text/plain; charset=utf-8",
            resend=False,
            patience_s=_V1_PATIENCE_S if connected else None,
        )
        try:
            actions = v1.decode_reply(reply)
        except ProtocolError as error:
            raise ClientError(f"{self.connection.url} does not answer like a dagger server: {error}") from error
        return actions[0] if actions and actions[0] != v1.SKIP else None

    # --- the environment -------------------------------------------------------------------------------------------

    def _play(self, game: Game, ask: Callable[[Observation], str | None]) -> None:
        """Play one game, and count it unless the server gave it up; `ask` gives the action after an observation.

        Raises as `_value`.
        """
        self._given_up = False
        outcome = self.executor.run_one(self.player, game, answer=lambda observations: [ask(o) for o in observations])
        won, actions = self._value(outcome)
        self._losses = 0
        skipped = self.player.write_history and not actions  # v1 skips what was solved in an earlier round
        if not (skipped or self._given_up):
            self.tally.add(game, won=won, steps=actions)

    def _value(self, outcome: JobOutcome) -> Any:
        """The outcome's value; raises EnvironmentLost without one, and EnvironmentFault at the third loss in a row."""
        if not outcome.fault:
            return outcome.value
        self._losses += 1
        if self._losses >= _LOSSES:
            raise EnvironmentFault(f"an environment was lost {_LOSSES} times in a row: it {outcome.fault}")
        raise EnvironmentLost(outcome.fault)
