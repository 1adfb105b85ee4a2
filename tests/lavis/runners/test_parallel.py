"""Two real processes (Gloo) against one: the same losses, the same weights, every sample evaluated once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lavis.models import load_model
from lavis.models.blip2_models.emac_config import PARTS
from lavis.runners.parallel import Replicas
from tests import warm

REPO_ROOT = Path(__file__).resolve().parents[3]
STORAGE = "datasets.alfworld_cap.build_info.annotations"
COMMON = {"run.max_epoch": 2, "run.num_workers": 0, "run.log_freq": 1, "run.amp": False, "run.warmup_steps": 0}
COMMON |= {"run.accum_grad_iters": 2, "run.max_len": 6, "run.clip_grad_norm": 1.0}


def losses(path: Path) -> list[float]:
    content = [json.loads(line) for line in (path / "log.txt").read_text().splitlines()]
    return [line["train_loss"] for line in content if "train_batches" in line]


@pytest.fixture(scope="module")
def two_processes(shard_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes with two samples each, one after another in one process group."""
    out = tmp_path_factory.mktemp("two")
    common = {**COMMON, "run.output_dir": out, "run.batch_size_train": 2, f"{STORAGE}.train.storage": shard_folder}
    common[f"{STORAGE}.val.storage"] = shard_folder
    bc = out / "ddp/checkpoint_0.pth"
    runs = [
        {"run.job_id": "ddp", "run.valid_splits": "[val]"},
        {"run.job_id": "dpo", "run.objective": "dpo", "model.pretrained": bc, "model.ref_pretrained": bc},
        {"run.job_id": "fsdp", "run.fsdp": True, "run.valid_splits": "[val]"},
        {"run.job_id": "half", "run.fsdp": True, "run.amp": True, "model.amp": "float16", "run.max_epoch": 1},
        {"run.job_id": "fsdp_on", "run.fsdp": True, "run.resume_ckpt_path": out / "fsdp/checkpoint_0.pth"},
    ]
    options = [[f"{key}={value}" for key, value in {**common, **run}.items()] for run in runs]
    (out / "runs.json").write_text(json.dumps(options))
    command = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command += [Path(__file__).with_name("many_runs.py"), out / "runs.json"]
    done = warm.run(command, more={"PYTHONPATH": str(REPO_ROOT), "HOME": str(out)})
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize("kind", ["ddp", "dpo", "fsdp"])
def test_same_losses_and_weights_as_one_process(make_runner, two_processes: Path, tmp_path: Path, kind: str) -> None:
    settings = {**COMMON, "run.batch_size_train": 4, "model.freeze_vit": False}
    if kind == "dpo":
        bc = two_processes / "ddp/checkpoint_0.pth"
        settings |= {"run.objective": "dpo", "model.pretrained": bc, "model.ref_pretrained": bc}
    make_runner("one", **settings).train()
    assert losses(two_processes / kind) == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    one = torch.load(tmp_path / "one/checkpoint_1.pth", weights_only=True)
    two = torch.load(two_processes / kind / "checkpoint_1.pth", weights_only=True)
    for name, value in one["model"].items():
        assert torch.allclose(value, two["model"][name], atol=2e-4), name
    moments = one["optimizer"]["state"][0]["exp_avg"], two["optimizer"]["state"][0]["exp_avg"]
    assert torch.allclose(*moments, atol=1e-4)


def test_processes_share_what_the_reference_said(two_processes: Path) -> None:
    known = [
        torch.load(two_processes / f"dpo/checkpoint_{epoch}.pth", weights_only=True)["references"]["places"]
        for epoch in range(2)
    ]
    assert [len(places) for places in known] == [8, len(torch.cat(known).unique(dim=0))]  # two batches of two by two


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_sample_is_evaluated_once(two_processes: Path, kind: str) -> None:
    rows = json.loads((two_processes / kind / "result/val_epoch1.json").read_text())
    assert [row["instance_id"] for row in rows] == list(range(11))


def test_sharded_resume_is_exact(two_processes: Path) -> None:
    whole = torch.load(two_processes / "fsdp/checkpoint_1.pth", weights_only=True)["model"]
    resumed = torch.load(two_processes / "fsdp_on/checkpoint_1.pth", weights_only=True)["model"]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_sharded_float16_scales_its_gradients(two_processes: Path) -> None:
    whole, half = losses(two_processes / "fsdp"), losses(two_processes / "half")
    assert half == pytest.approx(whole[: len(half)], abs=0.02)
    scaler = torch.load(two_processes / "half/checkpoint_0.pth", weights_only=True)["scaler"]
    assert scaler["scale"] >= 2.0**10 and scaler["_growth_tracker"] == 1  # one update, which did not overflow


def test_a_reference_that_shares_weights_is_not_sharded() -> None:
    frozen = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True, "allow_random": list(PARTS)}
    model = load_model("blip2_emac", "tiny", options={**frozen, "lora_rank": 2})
    model.set_reference()
    with pytest.raises(ValueError, match=r"run.fsdp=True cannot shard .*\(model.lora_rank"):
        Replicas(model, fsdp=True)


def test_weights_of_two_dtypes_are_not_sharded() -> None:
    model = load_model("blip2_emac", "tiny", options={"allow_random": list(PARTS)})
    model.llm_model.bfloat16()
    with pytest.raises(ValueError, match="run.fsdp=True needs one dtype .* torch.bfloat16 and torch.float32: set"):
        Replicas(model, fsdp=True)
