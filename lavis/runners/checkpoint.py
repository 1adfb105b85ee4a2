"""Checkpoints of runners: LAVIS's keys with what an exact resume needs; written atomically, read without unpickling.

model, optimizer, scaler, config, epoch      LAVIS's (`model` holds only what trains)
batches        micro-batches done since the run began: its place in the data
arch, base_hash      the model and the frozen weights that these belong to
adapter_scaling      lora_alpha / lora_rank; None without adapters; older files lack it
global_batch, accum_grad_iters, batches_per_epoch      what `batches` counts; older files lack the last
batches_of_data      batches in one pass through the training data; older files lack it
random         torch's generator state of every process
best, averages      best validation so far; means of the current epoch
references     cached reference log-probabilities per transition, if DPO caches them
played         the games that the weights have trained on (`lavis.models.played`); older files lack it
"""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import torch

from lavis.checkpoints import CheckpointError, check_types, read
from lavis.common.errors import ConfigError
from lavis.common.files import write_atomically

logger = logging.getLogger(__name__)

# Settings that the trained weights do not depend on, or that `require_fit` compares: of the machine, of the place of
# files, of evaluations, and how long is trained.
_FREE = re.compile(
    r"run\.(device|world_size|dist_url|distributed|fsdp|find_unused_parameters|num_workers|num_threads|log_freq|evaluate"
    r"|wandb_project|output_dir|job_id|resume_ckpt_path|max_epoch|max_iters|batch_size_train|batch_size_eval|max_len"
    r"|min_len|num_beams|repetition_penalty|length_penalty|valid_splits|test_splits|environment\..*|policy\..*)"
    r"|.*\.(storage|url|md5)|model\.(pretrained|ref_pretrained|llm_model|path|kept_prompts_mib)"
)
# Of these a run may find the same thing in another place, but not another thing: `_names` compares the ends of paths.
_SAME_THING = re.compile(r".*\.storage|model\.(pretrained|ref_pretrained)")
TYPES: dict[str, type | UnionType] = {  # LAVIS's keys, then ours
    "model": dict,
    "optimizer": dict,
    "scaler": dict | None,
    "config": dict,
    "epoch": int,
    "batches": int,
    "arch": str,
    "base_hash": str,
    "global_batch": int,
    "accum_grad_iters": int,
    "random": list,
    "best": dict,
    "averages": dict,
    "references": dict,
}


NOTHING_VALIDATED: dict[str, Any] = {"agg_metrics": -math.inf, "epoch": -1}  # `best` of a run that begins


def is_better(figures: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    """Whether a validation's `figures` are better than those of `best`: `agg_metrics`, and of equals the lower loss.

    Of a student that begins with random weights no answer is right for some epochs: all of these would be equal.
    """
    first, second = ((its["agg_metrics"], -its.get("loss", math.inf)) for its in (figures, best))
    return first > second


def best_of(figures: Mapping[str, Any], epoch: int | str) -> dict[str, Any]:
    """`best` of a validation."""
    return {key: figures[key] for key in ("agg_metrics", "loss") if key in figures} | {"epoch": epoch}


def best_in(folder: Path, best: Mapping[str, Any]) -> Path | None:
    """The file of the weights that `best` tells of; None if nothing is validated yet.

    Another run may have left its own file in the folder, which says of another validation that it was the best.
    """
    path = folder / "checkpoint_best.pth"
    if best["epoch"] < 0 or not path.is_file():
        return None
    return path if load(path, mmap=True)["best"] == best else None


def bring_best(best: dict[str, Any], earlier: Path, folder: Path, *, write: bool) -> dict[str, Any]:
    """`best` of a run that goes on in another `folder`: its weights are copied there, if this process is to `write`.

    If the `earlier` folder lacks them, nothing counts as validated: else the last weights would pass for the best ones.
    """
    if best["epoch"] < 0:
        return best
    weights = best_in(earlier, best)
    if weights is None:  # also in the run's own folder: it was resumed from an older checkpoint, and a later one won
        lost = "%s lacks the best weights so far, those of epoch %s: the best is looked for anew"
        logger.warning(lost, earlier, best["epoch"])
        return dict(NOTHING_VALIDATED)
    if write and earlier.resolve() != folder.resolve():
        with weights.open("rb") as source:
            write_atomically(folder / weights.name, lambda file: shutil.copyfileobj(source, file))
    return best


def load(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU; MissingFileError, or CheckpointError if it is damaged or foreign.

    With `mmap` a tensor is read when it is used.
    """
    content = read(path, setting="run.resume_ckpt_path", mmap=mmap)
    # Before the types: a file of weights alone lacks most keys, and its user needs another hint than "damaged".
    lacking = [key for key in TYPES if not isinstance(content, dict) or key not in content]
    if lacking:
        raise CheckpointError(
            f"{path} is no checkpoint of a runner: it lacks {', '.join(lacking[:3])}. Weights alone are loaded with "
            "model.pretrained"
        )
    check_types(content, path, required=TYPES, optional={"batches_per_epoch": int, "batches_of_data": int})
    return content


def require_fit(content: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
    """CheckpointError if `content` differs from this run's `own` values: another model, or other batches."""
    new = "begin a new run from these weights with model.pretrained"
    for key, value in own.items():
        if key in content and content[key] != value:
            theirs, ours = (str(side)[:24] for side in (content[key], value))
            hint = {
                "global_batch": " (run.batch_size_train × processes)",
                "batches_per_epoch": ": resume with the same training data (and run.iters_per_inner_epoch), or " + new,
                "batches_of_data": ": resume with the same training data, or " + new,
            }.get(key, "")
            raise CheckpointError(f"{path} has {key} {theirs}, this run {ours}{hint}")


def compare_settings(content: Mapping[str, Any], own: Mapping[str, Any], path: Path, *, left: int) -> None:
    """Warn of settings in which this run differs from that of the checkpoint `content`; `left` epochs are to come.

    A run may be resumed with other settings. ConfigError if it differs and has nothing left to train: it is probably
    another experiment under the same name, and would pass the earlier run's weights off as its own.
    """
    before, now = _flat(content["config"]), _flat(own)
    changed = [
        f"{key} {before.get(key, 'unset')} → {now.get(key, 'unset')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and not (
            _names(before.get(key)) == _names(now.get(key)) if _SAME_THING.fullmatch(key) else _FREE.fullmatch(key)
        )
    ]
    if changed and left <= 0:
        raise ConfigError(
            f"{path} is of a run that has ended, with other settings ({', '.join(changed)}): name another run.job_id, "
            "train longer, or go on from its weights with model.pretrained"
        )
    if changed:
        logger.warning("%s is of a run with other settings: %s", path, ", ".join(changed))


def _names(paths: object) -> list[tuple[str, ...]]:
    """The last two names of each path of a setting: `run_1/checkpoint_best.pth`, wherever it lies."""
    listed = paths if isinstance(paths, list | tuple) else [paths] if paths else []
    names = [Path(str(path)).parts[-2:] for path in listed]
    # A job's own copy lies in a folder that is new in each job (`stage` of run_scripts/common/job.sh): its name says
    # nothing of the data.
    return [last[1:] if len(last) > 1 and last[0].startswith("emac-data-") else last for last in names]


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"run": {"seed": 1}}` as `{"run.seed": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def newest(folder: Path) -> Path | None:
    """The checkpoint in `folder` that has seen the most batches; None if there is none.

    Files' times do not say it: `cp -r` gives them new ones. Of two checkpoints after as many batches, the numbered one
    was written after `checkpoint_stopped.pth`: its epoch has been validated. CheckpointError for a damaged file.
    """
    numbered = [path for path in folder.glob("checkpoint_*.pth") if _number(path) >= 0]
    last = max(numbered, key=_number, default=None)
    stopped = folder / "checkpoint_stopped.pth"
    if not stopped.is_file():
        return last
    if last is None:
        return stopped
    last_batches, stopped_batches = (load(path, mmap=True)["batches"] for path in (last, stopped))
    return last if last_batches >= stopped_batches else stopped


def require_own_folder(folder: Path, resumed: Path | None) -> None:
    """ConfigError if `folder` holds checkpoints and the run does not go on from one of them (`resumed`).

    Two runs in one folder cannot be told apart: `latest` and the best weights might be the earlier run's.
    """
    if resumed and resumed.resolve().parent == folder.resolve():
        return
    if (found := newest(folder)) is not None:
        raise ConfigError(
            f"{found} is of an earlier run: go on with it by run.resume_ckpt_path=latest, or name another run.job_id"
        )


def _number(path: Path) -> int:
    """The number in a checkpoint's name, which grows with its batches; -1 without one."""
    label = path.stem.removeprefix("checkpoint_")
    return int(label) if label.isdecimal() else -1


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of the generators that training draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Continue from `random_state`."""
    torch.set_rng_state(state["cpu"])
    # A run on a GPU may be resumed on a CPU, and the other way round.
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
