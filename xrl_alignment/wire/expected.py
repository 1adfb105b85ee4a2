"""What the clients of a run are to play, and how their games are to be shown: compared when a client says hello."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from alfworld_native.games import ids_hash
from xrl_alignment.wire.messages import Hello

# What a client shows of its games: settings of `environment`, and options of alfworld_client.py.
_VIEW = ("name_by", "show_ids", "camera", "blank_frames", "other_frames", "image_noise", "image_severity", "text_noise")


def view_of(settings: Any) -> str:
    """How games are shown, as `camera=front show_ids=True …`, by an `environment:` section or by a client's options.

    The kind of the frames' noise is among it only if there is noise.
    """
    told = [name for name in _VIEW if name != "image_noise" or settings.image_severity]
    return " ".join(f"{name}={getattr(settings, name)}" for name in told)


@dataclass
class ExpectedGames:
    """What the clients of a run are to play. A training run on other games than its settings say is contaminated.

    `find_games` gives the ids of the run's games, or None if they are not on this machine: then only engine and
    split are compared. `find_split` gives those of the whole split, in any order. `allow_other` accepts every client.
    `client_command` is the command line that fits. `view` is how games are to be shown (`view_of`).
    """

    engine: str
    split: str
    find_games: Callable[[], Sequence[str] | None] = lambda: None
    allow_other: bool = False
    client_command: str = ""
    view: str = ""
    find_split: Callable[[], Collection[str] | None] = lambda: None
    _games: Sequence[str] | None = None
    _split: frozenset[str] = frozenset()

    def difference(self, client: Hello) -> str:
        """Why a client does not fit, and what to do; empty if it fits, or if nobody can tell.

        A client that names its split must play the run's games in their order. One that names none (of wire v1, an
        older one, or one of another origin) may play any games of the run's split, in an order of its own.
        """
        if self.allow_other:
            return ""
        command = f"start it as: {self.client_command}; " if self.client_command else ""
        fix = f"{command}or set environment.allow_other_games=true on the server"
        here, there = f"{self.engine} {self.split}", f"{client.environment or '?'} {client.split or '?'}"
        if (client.environment or self.engine, client.split or self.split) != (self.engine, self.split):
            return f"the client plays {there}, this run's settings say {here} (environment:); {fix}"

        # Only what both tell: a client of another version may know other settings.
        shows, wanted = ({its.partition("=")[0]: its for its in view.split()} for view in (client.view, self.view))
        other = [name for name, its in shows.items() if wanted.get(name, its) != its]
        if other:
            theirs, ours = (" ".join(view[name] for name in other) for view in (shows, wanted))
            return f"the client shows its games with {theirs}, this run's settings say {ours} (environment:); {fix}"
        if not client.split:
            foreign = next((game for game in client.games if self.has(game) is False), None)
            if foreign is None:
                return ""
            return (
                f"the client plays {foreign[:100]}, which is none of the {len(self._split)} games of {here}, as this "
                f"run's settings say (environment:); {fix}"
            )
        if self._games is None:
            self._games = self.find_games()  # now, and not before: the client may have generated them on this machine
        if self._games is None or list(client.games[: len(self._games)]) == list(self._games):
            return ""
        if len(client.games) < len(self._games):
            return (
                f"the client offers {len(client.games)} games, this run plays {len(self._games)} (run.num_envs); {fix}"
            )
        return (
            f"the client's games of {there} ({ids_hash(client.games[: len(self._games)])}) are not those of this run's "
            f"settings ({ids_hash(self._games)}; environment.seed, environment.data); {fix}"
        )

    def has(self, game: str) -> bool | None:
        """Whether the run's split has `game`; None if its name or this machine does not tell.

        An id names a trial (`pick_and_place-…/trial_…`); the bare type `pick_and_place` may be any game.
        """
        if "/" not in game:
            return None
        if not self._split:
            self._split = frozenset(self.find_split() or ())
        return game in self._split if self._split else None
