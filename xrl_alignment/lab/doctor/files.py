"""Checks of files that a run reads: a model's weights, and games."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lavis
from xrl_alignment.lab.doctor.finding import Finding

if TYPE_CHECKING:
    from alfworld_native.base import Game

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHT_FILES = (".safetensors", ".bin", ".pth", ".pt")


def check_weights(path: str, what: str = "weights") -> Finding:
    """A model's weights: a checkpoint file, or a folder as Transformers writes it; `tiny/…` may be one of ours."""
    place = Path(os.path.expandvars(path)).expanduser()
    ours = Path(lavis.__file__).parent / "models" / path
    # Beside weights the package has folders of code there.
    shipped = ours.is_file() or (ours / "config.json").is_file()
    place = ours if shipped and not place.exists() else place
    if place.is_file():
        return _unreadable(place, what) or Finding("ok", what, f"{place}, {place.stat().st_size / 1024**2:.0f} MiB")
    if not place.exists() and _HUB_ID.fullmatch(path) and place.suffix not in _WEIGHT_FILES:
        from huggingface_hub import try_to_load_from_cache

        # It gives a path, None, or an object that stands for "known not to exist".
        if isinstance(try_to_load_from_cache(path, "config.json"), str):
            return Finding("ok", what, f"{path}, in the Hugging Face cache")
        advice = "it is downloaded at the first start; without a network give a folder instead"
        return Finding("warn", what, f"{path} is no folder here and not in the Hugging Face cache", advice)
    if not place.is_dir():
        advice = "give the folder or file that holds the weights, or a Hugging Face id if the network allows it"
        return Finding("fail", what, f"{place} does not exist", advice)
    if not (place / "config.json").is_file():
        return Finding("fail", what, f"{place} has no config.json", "give the model's own folder, not the one above it")
    files = [f for f in place.iterdir() if f.suffix in _WEIGHT_FILES]
    if not files:
        return Finding("fail", what, f"{place} holds no weights", "download them again; Git LFS may have been off")
    size = sum(file.stat().st_size for file in files) / 1024**3
    return _unreadable(place, what) or Finding("ok", what, f"{place}, {size:.1f} GiB in {len(files)} files")


def _unreadable(place: Path, what: str) -> Finding | None:
    """A `fail` for a file or folder of weights that cannot be read whole: cut off, Git LFS's notes, a shard too few."""
    # If the libraries that read weights are missing, another check says so.
    with contextlib.suppress(ImportError):
        from lavis.common.errors import EmacError
        from lavis.models.blip2_models.weights import read_shapes

        try:
            read_shapes(place)
        except EmacError as error:
            return Finding("fail", what, str(error), "name a file of weights, or a folder that has all of them")
    return None


def check_config_weights(cfg_path: str, options: Sequence[str] = ()) -> Iterator[Finding]:
    """Every file of weights that a config names under `model:`; a config that cannot be read is one `fail`."""
    from lavis.common.config import is_lavis_config, load_yaml
    from lavis.common.errors import EmacError
    from lavis.models.sections import check_config
    from xrl_alignment.settings.loading import is_emac_plus, load_config, program_of
    from xrl_alignment.settings.planning import EmacPlusConfig

    # Which program reads the file comes first: what another one would say of it has nothing to do with its mistake.
    try:
        model: Mapping[str, Any]
        if is_lavis_config(cfg_path) or "datasets" in load_yaml(cfg_path):  # of train.py
            model = check_config(cfg_path, options)
        elif is_emac_plus(cfg_path):
            model = load_config(EmacPlusConfig, cfg_path, options).model
        else:
            model = load_config(program_of(cfg_path, options), cfg_path, options).model
    except EmacError as error:
        yield Finding("fail", "config", str(error), "correct the file")
        return
    # A class of one's own may mean something else by `path`.
    folders = ("path",) if model.get("arch") == "hf_vlm" else ()
    for key in (*folders, "llm_model", "base_model", "vit_weights", "pretrained", "ref_pretrained"):
        path = str(model.get(key) or "")
        # `tiny` is in the package, and an address is downloaded at the first start.
        if path and path != "tiny" and not path.startswith(("https://", "http://")):
            yield check_weights(path, f"model.{key}")


def games_by_split(data: str | None, only: str = "") -> dict[str, list[Game]]:
    """The games of every split under `data`, or of the split `only`; a split without games is left out."""
    from alfworld_native.errors import EnvironmentFault
    from alfworld_native.games import find_games, find_splits

    found = {}
    for split in [only] if only else find_splits(data):
        with contextlib.suppress(EnvironmentFault, OSError):
            found[split] = find_games(split, data=data)
    return found


def check_games(data: str | None = None) -> Finding:
    """ALFWorld games under `data`, `$ALFWORLD_DATA` or ALFWorld's own cache; without them only a given `data` fails."""
    from alfworld_native.games import data_root

    counts = [f"{split} {len(games)}" for split, games in games_by_split(data).items()]
    if counts:
        return Finding("ok", "games", f"{data_root(data)}: {', '.join(counts)}")
    advice = "run `alfworld-download`, or set ALFWORLD_DATA or --data; generated games need none"
    return Finding("fail" if data else "warn", "games", f"no official games under {data_root(data)}", advice)
