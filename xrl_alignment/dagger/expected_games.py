"""Compares what a client plays (engine, split, games) with the server's `environment:` section."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from xrl_alignment.environments.games import ids_hash
from xrl_alignment.wire.messages import Hello


@dataclass
class ExpectedGames:
    """What the clients of a run are to play. A training run on other games than its settings say is contaminated.

    `find_games` gives the ids of the run's games, or None where they are not on this machine: then only engine and
    split are compared. `find_split` gives those of the whole split, in any order. `allow_other` accepts every client.
    `client_command` is the command line that fits.
    """

    engine: str
    split: str
    find_games: Callable[[], Sequence[str] | None] = lambda: None
    allow_other: bool = False
    client_command: str = ""
    find_split: Callable[[], Collection[str] | None] = lambda: None
    _games: Sequence[str] | None = None
    _split: frozenset[str] = frozenset()

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

    def foreign(self, game: str, engine: str = "") -> str:
        """Why a client may not play `game`, and what to do; empty where it may, or nobody can tell.

        For wire v1, whose clients name no split, seldom an engine, and play in an order of their own.
        """
        if self.allow_other:
            return ""
        if engine and engine != self.engine:
            return f"the client plays on {engine}, this run's settings say {self.engine} (environment:); {self._fix()}"
        known = self._split_with(game)
        if not known or game in known:
            return ""
        return (
            f"the client plays {game[:100]}, which is none of the {len(known)} games of {self.engine} {self.split}, as "
            f"this run's settings say (environment:); {self._fix()}"
        )

    def split_of(self, game: str) -> str:
        """The run's split, if it has `game`; empty where it has not, or its games are not on this machine."""
        return self.split if game in self._split_with(game) else ""

    def _split_with(self, game: str) -> frozenset[str]:
        """The ids of the split's games, to look for `game`; empty where its name or this machine does not tell."""
        if "/" not in game:  # an id names a trial; `pick_and_place` may be any game
            return frozenset()
        if not self._split:
            self._split = frozenset(self.find_split() or ())
        return self._split

    def _fix(self) -> str:
        command = f"start it as: {self.client_command}; " if self.client_command else ""
        return f"{command}or set environment.allow_other_games=true on the server"
