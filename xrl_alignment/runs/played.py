"""Which games a model has trained on, as its checkpoint says: an evaluation on one of them is no held-out figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint


@dataclass(frozen=True)
class PlayedGames:
    """Game ids, and where they were played: `engine split` (`native valid_seen`), as the clients said it."""

    games: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()

    def merged(self, other: PlayedGames) -> PlayedGames:
        """The games of both; a second phase continues with the weights of the first, so it has trained on its games."""
        return PlayedGames(
            tuple(sorted({*self.games, *other.games})), tuple(sorted({*self.environments, *other.environments}))
        )

    def among(self, ids: Iterable[str]) -> list[str]:
        """Those of `ids` that are games of these."""
        known = set(self.games)
        return [game for game in ids if game in known]

    @property
    def all_named(self) -> bool:
        """Whether every game has an id: of a client of wire v1 that sends only task types nobody knows the games."""
        return all("/" in game for game in self.games)

    def as_dict(self) -> dict[str, list[str]]:
        """Plain containers, as a checkpoint holds them."""
        return {name: list(values) for name, values in asdict(self).items()}


def played_in(content: Mapping[str, Any]) -> PlayedGames | None:
    """What a loaded checkpoint says of its games; None in a checkpoint of an older version."""
    played = content.get("played")
    if not isinstance(played, Mapping):
        return None
    return PlayedGames(tuple(played.get("games", ())), tuple(played.get("environments", ())))


def played_by_file(path: Path | str) -> PlayedGames | None:
    """What the weights file `path` says of its games; None where it says nothing, for it is no checkpoint of a run."""
    if not str(path) or not Path(path).is_file() or Path(path).suffix == ".safetensors":
        return None
    try:
        return played_in(load_checkpoint(path))
    except CheckpointError:
        return None  # weights of another kind: whoever loads them says whether they can be used
