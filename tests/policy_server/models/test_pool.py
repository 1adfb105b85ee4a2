from __future__ import annotations

import gc
import os
import weakref
from types import SimpleNamespace

import pytest
from PIL import Image

from policy_server.games.prompts import ModelPrompt
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.models.vision_model import ModelJob, VisionModel
from policy_server.refusals import RequestRefused
from policy_server.settings import ModelSettings
from tests.policy_server.servers import ROOM, TINY

TABLE = {name: ModelSettings(path=TINY) for name in "abc"}
SIZE = 9_005_184  # bytes of the tiny model


def job(prompt: str = ROOM) -> ModelJob:
    return ModelJob(Image.new("RGB", (64, 36)), ModelPrompt("", prompt), 0.0, 16)


def loaded(pool: ModelPool) -> str:
    return "".join(entry["name"] for entry in pool.status() if entry["loaded"])


def test_the_model_not_asked_for_the_longest_makes_room():
    pool = ModelPool(TABLE, int(2.5 * SIZE), Metrics())
    seen = []
    for name in ("a", "b", "a", "c", "b"):
        (answer,) = pool.answer(name, [job()])
        assert isinstance(answer, str)
        seen.append(loaded(pool))
    assert seen == ["a", "ab", "ab", "ac", "bc"]
    assert pool.bytes() == 2 * SIZE and pool.loaded("a") is None


def test_garbage_collections_skip_what_is_loaded_and_unloading_frees_it():
    """Else a collection stops the event loop for 0.2 s every few seconds."""
    pool = ModelPool(TABLE, int(1.5 * SIZE), Metrics())
    gc.unfreeze()
    first = weakref.ref(pool.get("a"))
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10  # the frozen ones are not among them
    pool.get("b")
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    assert first() is None


def test_without_a_budget_all_stay():
    pool = ModelPool(TABLE, 0, Metrics())
    for name in TABLE:
        pool.get(name)
    assert loaded(pool) == "abc" and pool.default == "a"


def test_a_model_larger_than_the_budget_is_refused_and_not_kept():
    pool = ModelPool(TABLE, SIZE - 1, Metrics())
    with pytest.raises(MemoryError, match="model a needs 0.008 GiB; memory.models_gib is 0.008"):
        pool.get("a")
    (refusal,) = pool.answer("a", [job()])
    assert (refusal.status, refusal.code) == (503, "model_unavailable")
    assert loaded(pool) == ""


@pytest.mark.parametrize("files", [2 * SIZE, 0])
def test_a_model_that_can_never_fit_unloads_no_other(tmp_path, files):
    """Its size is known from its files, or (a hub id) only once it is loaded."""
    read = []

    def load(settings: ModelSettings) -> VisionModel:
        read.append(settings.path)
        return SimpleNamespace(bytes=2 * SIZE if settings.path == str(tmp_path) else SIZE // 2, device="cpu")

    if files:
        (tmp_path / "model.safetensors").touch()
        os.truncate(tmp_path / "model.safetensors", files)  # a file of holes
    pool = ModelPool({**TABLE, "huge": ModelSettings(path=str(tmp_path))}, SIZE, Metrics(), load=load)
    for name in "ab":
        pool.get(name)
    for _ in range(2):
        with pytest.raises(MemoryError, match="model huge needs 0.017 GiB"):
            pool.get("huge")
    assert loaded(pool) == "ab" and read.count(str(tmp_path)) == (0 if files else 1)  # not loaded for each request


def test_a_model_that_cannot_be_loaded_does_not_harm_the_others(tmp_path):
    pool = ModelPool({**TABLE, "broken": ModelSettings(path=str(tmp_path))}, 0, Metrics())
    (refusal,) = pool.answer("broken", [job()])
    assert refusal.status == 503 and "no config.json in there" in str(refusal)
    assert isinstance(pool.answer("a", [job()])[0], str)


def test_a_bug_while_loading_refuses_the_jobs_and_shows_its_traceback_in_the_log_alone(caplog):
    def load(settings: ModelSettings) -> VisionModel:
        raise RuntimeError("a secret of the machine")

    (refusal,) = ModelPool(TABLE, 0, Metrics(), load=load).answer("a", [job()])
    assert (refusal.status, str(refusal)) == (503, "model a cannot be loaded")
    assert "a secret of the machine" in caplog.text


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(RequestRefused, match="unknown model 'z': choose one of a, b, c") as caught:
        ModelPool(TABLE, 0, Metrics()).settings("z")
    assert caught.value.status == 404


def test_a_bug_of_the_model_is_not_blamed_on_the_job_and_shown_in_the_log_alone(caplog):
    class Broken:
        bytes = 0

        def answer(self, jobs):
            raise ValueError("a secret of the machine")

    pool = ModelPool(TABLE, 0, Metrics(), load=lambda settings: Broken())
    (refusal,) = pool.answer("a", [job()])
    assert (refusal.status, str(refusal)) == (500, "the model failed: ValueError")
    assert "a secret of the machine" in caplog.text


def test_a_bad_job_in_a_batch_fails_alone():
    pool = ModelPool(TABLE, 0, Metrics())
    good, bad, other = pool.answer("a", [job(), job("a mug " * 5000), job()])
    assert good == other and isinstance(good, str)
    assert (bad.status, bad.code) == (422, "not_answerable")
