"""Compares what a client plays (engine, split, games) with the server's `environment:` section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xrl_alignment.environments.games import ids_hash
from xrl_alignment.wire.messages import Hello


@dataclass
class ExpectedGames:
    """What the clients of a run are to play. A training run on other games than its settings say is contaminated.

    `find_games` gives the ids of the run's games, or None where they are not on this machine: then only engine and
    split are compared. `allow_other` accepts every client. `client_command` is the command line that fits.
    """

    engine: str
    split: str
    find_games: Callable[[], Sequence[str] | None] = lambda: None
    allow_other: bool = False
    client_command: str = ""
    _games: Sequence[str] | None = None

    def difference(self, hello: Hello) -> str:
        """Why the client of `hello` does not fit, and what to do; empty where it fits.

        A client that names neither engine nor split (an older one, or one of another origin) is not compared.
        """
        if self.allow_other:
            return ""
        here, there = f"{self.engine} {self.split}", f"{hello.environment or '?'} {hello.split or '?'}"
        same_engine = not hello.environment or hello.environment == self.engine
        if not same_engine or (hello.split and hello.split != self.split):
            return f"the client plays {there}, this run's settings say {here} (environment:); {self._fix()}"
        if not hello.split:
            return ""
        if self._games is None:
            self._games = self.find_games()
        if self._games is None or list(hello.games[: len(self._games)]) == list(self._games):
            return ""
        return (
            f"the client's games of {there} ({ids_hash(hello.games[: len(self._games)])}) are not those of this run's "
            f"settings ({ids_hash(self._games)}; environment.seed, environment.data); {self._fix()}"
        )

    def _fix(self) -> str:
        command = f"start it as: {self.client_command}; " if self.client_command else ""
        return f"{command}or set environment.allow_other_games=true on the server"
