"""The student that plays by looks is put together from an encoder, a reader and a language model."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import load_file

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from lavis.models import load_model_and_preprocess
from lavis.models.blip2_models.conv_encoder import ConvEncoder, ConvEncoderConfig
from lavis.models.student import Question
from xrl_alignment.lab.pretraining import reading
from xrl_alignment.lab.pretraining.by_looks import told_student
from xrl_alignment.lab.pretraining.files import read_splits, write_weights
from xrl_alignment.lab.pretraining.reading import (
    Reader,
    agreement,
    learn_to_read,
    loss_of,
    named_by,
    student_state,
)
from xrl_alignment.lab.pretraining.recognition import encoder_weights
from xrl_alignment.lab.pretraining.vision import TYPES

WIDTH = 1 + len(TYPES)
SIZES = {"channels": [4, 8, 8], "depths": [0, 0, 0]}


def made_up_findings(number: int) -> torch.Tensor:
    """Features of images in which a few types are, each in one patch: (N, 1 + 9, D)."""
    torch.manual_seed(0)
    found = torch.rand(number, 9, WIDTH) * 0.02
    for row in found:
        for kind in torch.randint(1, 8, (3,)).tolist():  # of seven types, so that a short training is enough
            row[torch.randint(9, ()), kind] = 0.98
    found[..., 0] = 0.5
    return torch.cat([found.amax(1, keepdim=True), found], dim=1).bfloat16()


def test_the_reader_learns_to_say_what_the_encoder_says(monkeypatch):
    monkeypatch.setattr(reading, "BATCH", 32)
    features = made_up_findings(1200)
    named = named_by(features)
    assert named.sum(1).min() >= 1 and named.sum(1).max() <= 3
    values = [learn_to_read(features, steps=steps, lr=3e-3, seed=0) for steps in (1, 80)]
    losses = [loss_of(reader(features[-64:].float()), named[-64:]).item() for reader in values]
    assert losses[1] < losses[0] / 2
    said = values[1](features[:512].float())
    assert said.mean((0, 1)).abs().max() < 0.02  # what is not named has the value 0 in the mean
    precision, recall = agreement(values[1], features[-512:])
    assert 0.0 <= precision <= 1.0 and 0.0 <= recall <= 1.0


def test_the_student_gives_the_words_of_what_the_reader_names(tmp_path):
    torch.manual_seed(0)
    encoder, reader = ConvEncoder(ConvEncoderConfig(224, WIDTH, **SIZES)).eval(), Reader(WIDTH).eval()
    told = told_student()
    path = tmp_path / "student.safetensors"
    with torch.no_grad():
        write_weights(student_state(encoder, reader, told), path, read_splits(official=True))
    options = {"vit_config": SIZES, "pretrained": str(path), "amp": ""}
    model, _, _ = load_model_and_preprocess("blip2_emac", "student_looks", is_eval=True, options=options)
    model.require_sources()
    image = torch.randn(3, 224, 224)
    with torch.no_grad():
        tokens = model.image_tokens([Question("", (image,))])[0]  # (Q, H)
        values = reader(encoder(image[None]).last_hidden_state)[0]  # (Q, types)
    expected = told.nothing + values @ (told.words - told.nothing)
    assert torch.allclose(tokens, expected, atol=0.02 * tokens.abs().max().item())


def test_the_encoder_may_come_from_the_student_that_ships(capsys, monkeypatch, tmp_path):
    """Its folder of training is not needed to put another language model behind it."""
    shipped = REPO_ROOT / "lavis/models/tiny/student_looks.safetensors"
    torch.save(Reader(WIDTH).state_dict(), tmp_path / "reader.pt")
    told = told_student()
    llm = {key: value for key, value in told.llm_model.state_dict().items() if key != "lm_head.weight"}
    write_weights(llm, tmp_path / "llm.safetensors", read_splits(official=True))
    out = tmp_path / "out.safetensors"
    arguments = (
        f"--encoder {shipped} --language-model {tmp_path} --games {tmp_path} --reader {tmp_path}/reader.pt --out {out}"
    )
    monkeypatch.setattr(sys, "argv", ["reading", *arguments.split()])
    monkeypatch.setattr(reading, "find_games", lambda split, data=None: [])
    reading.main()
    new, old = load_file(out), load_file(shipped)
    encoder = [key for key in old if key.startswith("visual_encoder.")]
    assert encoder and all(torch.equal(new[key], old[key]) for key in encoder)
    assert not torch.equal(new["query_tokens"], old["query_tokens"])
    with pytest.raises(ConfigError, match=r"student\.safetensors has no encoder as recognition trains it"):
        encoder_weights(shipped.with_name("student.safetensors"))
