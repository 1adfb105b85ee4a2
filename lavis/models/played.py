"""Which games a model has trained on, as its checkpoint says: an evaluation on one of them is no held-out figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lavis.models import download
from lavis.models.blip2_models.emac_config import package_path
from lavis.models.folder_note import read_note
from lavis.models.tensor_files import TensorFileError, load_tensors

STORED = "stored games"  # where games come from a data set that does not say where they were played


@dataclass(frozen=True)
class PlayedGames:
    """Game ids, and where they were played: `STORED`, or engine and split (`native valid_seen`) as the clients said.

    `splits` are those whose games were read in such numbers that no list was kept, as for the students that ship
    (`xrl_alignment.lab.pretraining`): every game of such a split counts as played. `unknown` names weights, by their
    file or folder, that were trained on games which nobody noted, and data sets that do not name their games.
    """

    games: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def merged(self, other: PlayedGames) -> PlayedGames:
        """The games of both; a second phase continues with the weights of the first, so it has trained on its games."""
        return PlayedGames(
            tuple(sorted({*self.games, *other.games})),
            tuple(sorted({*self.environments, *other.environments})),
            tuple(sorted({*self.splits, *other.splits})),
            tuple(sorted({*self.unknown, *other.unknown})),
        )

    def among(self, ids: Iterable[str], split: str) -> list[str]:
        """Those of `ids`, games of `split`, that are games of these."""
        known = set(self.games)
        return [game for game in ids if game in known or split in self.splits]

    @property
    def all_named(self) -> bool:
        """Whether every game is known by its id.

        A client of wire v1 may send only task types, stored data may lack the game, and weights may be `unknown`.
        """
        return not self.unknown and all("/" in game for game in self.games)

    def as_dict(self) -> dict[str, list[str]]:
        """Plain containers, as a checkpoint holds them."""
        return {name: list(values) for name, values in asdict(self).items()}


def played_in(content: Mapping[str, Any]) -> PlayedGames | None:
    """What a loaded checkpoint says of its games; None if it says nothing that can be read, as in an older version."""
    played = content.get("played")
    if not isinstance(played, Mapping):
        return None
    named = [played.get(key, ()) for key in ("games", "environments", "splits", "unknown")]
    if not all(isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) for names in named):
        return None
    return PlayedGames(*map(tuple, named))


def played_by_file(path: Path | str) -> PlayedGames | None:
    """What the weights `path` say of their games; None if they say nothing, for they are no checkpoint of a run.

    A safetensors file says it in its metadata, as `python -m lavis.models.convert` writes it, and a folder in its note
    (`folder_note`). A file that ships is named as in the model types (`tiny/student.safetensors`).
    """
    path = Path(package_path(path))
    try:
        if path.is_dir():
            return played_in(read_note(path))
        if not path.is_file():
            return None
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return played_in({"played": json.loads((file.metadata() or {}).get("played", "null"))})
        content = load_tensors(path, mmap=True)
    except (OSError, TensorFileError, SafetensorError, ValueError):
        return None  # weights of another kind: whoever loads them says whether they can be used
    return played_in(content) if isinstance(content, Mapping) else None


def played_by_base(name: Path | str) -> PlayedGames | None:
    """What a base, the weights that a model begins with, says of its games; None if it is nobody's checkpoint.

    Most bases are plain: a folder of the hub, the file of InstructBLIP. A run's checkpoint and a folder of adapters may
    be named in their place; these have been trained, so that their games are `unknown` if they do not say them.
    """
    path = Path(package_path(name))
    if (known := played_by_file(path)) is not None:
        return known
    trained = (path / "adapter_config.json").is_file()  # peft's
    if path.is_file() and path.suffix != ".safetensors":
        try:
            content = load_tensors(path, mmap=True)
            trained = isinstance(content, Mapping) and isinstance(content.get("base_hash"), str)
        except (OSError, TensorFileError):
            return None  # as in `played_by_file`
    return PlayedGames(unknown=(path.name,)) if trained else None


def games_of_weights(model: Mapping[str, Any]) -> PlayedGames:
    """The games that the weights of a whole `model:` section have trained on.

    Whole: with the keys of its type, which may name the file (`xrl_alignment.builders.student.model_section`). Weights
    that a run continues from and that do not say their games are `unknown` among them.
    """
    played = PlayedGames()
    # The reference is loaded whatever `load_pretrained` says.
    loaded = ("pretrained", "ref_pretrained") if model.get("load_pretrained", True) else ("ref_pretrained",)
    for key in ("path", "llm_model", "base_model", "vit_weights", "llm_weights", *loaded):
        if not (name := str(model.get(key) or "")):
            continue
        known = played_by_base(name)
        if known is None and key in loaded:
            # What is loaded as a checkpoint was trained by someone. One exception: Blip2Emac may load a whole
            # InstructBLIP there, from a folder of the hub. A model of the hub (`path`) has its base elsewhere.
            path = Path(package_path(name))
            folder = path.is_dir() or (not path.exists() and download.is_hub_id(name))
            known = PlayedGames() if folder and not model.get("path") else PlayedGames(unknown=(path.name,))
        played = played.merged(known or PlayedGames())
    return played
