"""The encoder that recognises: what it is shown and asked, what is counted, and that training teaches it."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.games import find_games
from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models.conv_encoder import ConvEncoder, ConvEncoderConfig
from xrl_alignment.lab.pretraining import recognition
from xrl_alignment.lab.pretraining.recognition import GRID, LEAST_PIXELS, Seen, crowded, precision_recall, rates, views
from xrl_alignment.lab.pretraining.vision import TYPES

MUG, PEN = TYPES.index("mug"), TYPES.index("pen")


def seen(*objects: tuple[int, ...]) -> Seen:
    """A frame that was not rendered, with objects (type, x, y, width, height, visible pixels)."""
    rows = np.array(objects, np.int64).reshape(-1, 6)
    return Seen(np.zeros((224, 224, 3), np.uint8), rows, np.zeros((GRID, GRID), np.uint8))


@pytest.fixture(scope="module")
def train_games(household_data):
    return find_games("household_train", data=household_data)


@pytest.fixture(scope="module")
def frames(train_games):
    source = views(train_games, random.Random(0))
    return [next(source) for _ in range(40)]


def test_frames_show_things_and_patches_say_which(frames):
    assert len({one.frame.tobytes() for one in frames}) > 30
    assert len({kind for one in frames for kind in one.objects[:, 0].tolist()}) > 30  # types in view
    named, all_ = 0, 0
    for one in frames:
        assert one.frame.shape == (224, 224, 3) and one.frame.dtype == np.uint8
        shown = set(one.patches.ravel().tolist()) - {0}
        assert shown <= {kind + 1 for kind in one.objects[:, 0].tolist()}
        well = {kind + 1 for kind, *_, pixels in one.objects.tolist() if pixels >= LEAST_PIXELS}
        named, all_ = named + len(well & shown), all_ + len(well)
    assert named > 0.95 * all_  # two small things may share a patch


def test_training_and_held_out_variants_differ(train_games):
    shots = [next(views(train_games, random.Random(1), held_out=held_out)) for held_out in (False, True)]
    assert (shots[0].objects[:, 0] == shots[1].objects[:, 0]).all()  # the same moment
    assert (shots[0].frame != shots[1].frame).any()


def test_a_crowded_view_has_more_within_reach(train_games):
    environment = NativeEnvironment()
    environment.reset(train_games[0])
    state = environment.room_state()
    views_ = [replace(state, location=place) for place in sorted(set(state.receptacle_locations.values()))]
    view = next(one for one in views_ if one.in_reach())
    more = crowded(view, random.Random(0))
    assert set(view.in_reach()) < set(more.in_reach())
    every = [key for keys in more.contents.values() for key in keys]
    assert len(every) == len(set(every))  # nothing lies in two places


def test_what_hardly_shows_does_not_count():
    patches, there, counts = recognition.targets([seen((MUG, 50, 60, 20, 20, 300), (PEN, 90, 60, 3, 2, 5))])
    assert patches.shape == (1, GRID * GRID)
    assert there[0].nonzero().flatten().tolist() == [MUG]
    assert (counts[0] == 0).nonzero().flatten().tolist() == [PEN]


def test_the_loss_is_small_where_scores_are_right():
    one = seen((MUG, 50, 60, 20, 20, 300))
    one.patches[3, 3] = MUG + 1
    batch = recognition.targets([one])
    right = torch.zeros(1, 1 + len(TYPES), GRID * GRID)
    right[:, 0] = 12.0
    right[0, MUG + 1, 3 * GRID + 3] = 24.0
    wrong = right.roll(1, dims=1)
    assert sum(recognition.loss_of(right, *batch)) < 0.01 < sum(recognition.loss_of(wrong, *batch))


def test_precision_and_recall_by_hand():
    two = [seen((MUG, 50, 60, 20, 20, 300)), seen((PEN, 90, 60, 8, 3, 30))]  # the pen is less than 12 pixels long
    margins = torch.full((2, len(TYPES)), -1.0)
    margins[0, MUG] = margins[0, PEN] = margins[1, PEN] = 1.0  # rightly; wrongly; too small to count
    counts = precision_recall(margins, two)
    assert (counts["right"].sum(), counts["wrong"].sum(), counts["missed"].sum()) == (1, 1, 0)
    assert rates(counts) == (0.5, 1.0)
    assert rates(precision_recall(-margins[:1], two[:1]))[1] == 0.0


def test_training_lowers_the_loss_and_goes_on_from_its_folder(train_games, tmp_path, monkeypatch):
    for name, value in (("POOL", 48), ("BATCH", 16), ("REUSE", 2), ("JUDGED", 16), ("WARMUP_STEPS", 2)):
        monkeypatch.setattr(recognition, name, value)
    sizes = {"channels": (8, 16, 32), "depths": (0, 0, 1), "batch_norm": True}
    monkeypatch.setattr(
        recognition, "new_encoder", lambda: ConvEncoder(ConvEncoderConfig(224, 1 + len(TYPES), **sizes))
    )
    settings = {"lr": 5e-3, "seed": 0}
    recognition.train(train_games, train_games, tmp_path, minutes=0.04, **settings)
    first = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    recognition.train(train_games, train_games, tmp_path, minutes=first[-1]["minutes"] + 0.05, **settings)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) > len(first) and lines[len(first)]["step"] > first[-1]["step"]
    assert lines[-1]["losses"][0] < lines[0]["losses"][0]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_students_encoder_is_trained_further(train_games):
    """Its batch norms, folded into its convolutions, are put back: the same scores, and norms to train."""
    student = REPO_ROOT / "lavis/models/tiny/student_looks.safetensors"
    source = views(train_games, random.Random(0))
    pixels = recognition.pixels_of([next(source) for _ in range(8)])
    model = recognition.started_from(student, pixels)
    folded = ConvEncoder(ConvEncoderConfig(224, 1 + len(TYPES)))
    shipped = {key.removeprefix("visual_encoder."): value.float() for key, value in load_file(student).items()}
    folded.load_state_dict({key: shipped[key] for key in folded.state_dict()})
    with torch.no_grad():
        expected = folded.scores(pixels)
        largest = expected.abs().max().item()
        for mode in (False, True):  # a batch's own variance is that which is stored, but for a factor of n / (n - 1)
            assert torch.allclose(model.train(mode).scores(pixels), expected, atol=2e-3 * largest)
