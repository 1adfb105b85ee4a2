"""The convolutional encoder: what its features mean, batch norm folded away, and its place in Blip2Emac."""

from __future__ import annotations

import pytest
import torch

from lavis.common.errors import ConfigError
from lavis.models import load_model, load_model_and_preprocess
from lavis.models.blip2_models.conv_encoder import ConvEncoder, ConvEncoderConfig
from lavis.models.student import Question

SMALL = {"hidden_size": 6, "channels": [4, 8, 8], "depths": [1, 0, 1]}


def encoder(**sizes) -> ConvEncoder:
    torch.manual_seed(0)
    return ConvEncoder(ConvEncoderConfig(**{"image_size": 64, **SMALL, **sizes}))


def test_features_are_findings_of_the_patches_and_their_maximum_of_the_image():
    made, images = encoder(), torch.randn(3, 3, 64, 64)
    features = made(images).last_hidden_state
    assert features.shape == (3, 1 + 16, 6)
    assert torch.equal(features[:, 0], features[:, 1:].amax(1))
    assert (features[..., 0] == 0.5).all()  # class 0 is "nothing"
    scores = made.scores(images)  # (3, 6, 16)
    assert torch.allclose(features[:, 1:, 2], torch.sigmoid(scores[:, 2] - scores[:, 0]))


def test_batch_norm_is_folded_into_the_convolutions():
    trained = encoder(batch_norm=True).train()
    for _ in range(3):  # statistics that are not those of the beginning
        trained(torch.randn(4, 3, 64, 64) * 3 + 1)
    folded, images = trained.eval().folded(), torch.randn(2, 3, 64, 64)
    assert torch.allclose(folded(images).last_hidden_state, trained(images).last_hidden_state, atol=1e-5)
    assert not any("running" in key for key in folded.state_dict())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"patch_size": 14}, "16 pixels"), ({"image_size": 50}, "whole patches"), ({"depths": [1, 1]}, "three `depths`")],
)
def test_sizes_that_it_cannot_have_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        encoder(**sizes)


def test_it_takes_the_vision_transformers_place():
    parts = ["visual_encoder", "ln_vision", "Qformer", "query_tokens", "llm_proj", "llm_model"]
    options = {
        "vit_config": SMALL, "img_size": 64, "freeze_vit": False, "load_pretrained": False, "allow_random": parts,
    }  # fmt: skip
    model, _, _ = load_model_and_preprocess("blip2_emac", "student_looks", is_eval=True, options=options)
    assert isinstance(model.visual_encoder, ConvEncoder)
    image = torch.randn(3, 64, 64)
    answers = model.write([Question("> ", (image,))], num_beams=1, max_length=4)
    assert len(answers) == 1 and isinstance(answers[0], str)
    model.train().losses({"image": image[None], "text_input": ["> "], "text_output": ["look"]}, "bc").loss.backward()
    assert model.visual_encoder.stem[0].weight.grad.abs().sum() > 0


def test_what_batch_norm_measures_in_training_is_stored_with_the_weights():
    parts = ["visual_encoder", "ln_vision", "Qformer", "query_tokens", "llm_proj", "llm_model"]
    options = {
        "vit_config": {**SMALL, "batch_norm": True}, "img_size": 64, "freeze_vit": False, "load_pretrained": False,
        "allow_random": parts,
    }  # fmt: skip
    trained, other = (load_model("blip2_emac", "student_looks", options=options) for _ in range(2))
    image = torch.randn(2, 3, 64, 64)
    base = trained.frozen_hash()
    trained.losses({"image": image, "text_input": ["> "] * 2, "text_output": ["look"] * 2}, "bc")
    assert trained.frozen_hash() == base
    other.load_trainable(trained.trainable_state_dict())
    with torch.no_grad():
        ours, theirs = (model.eval().visual_encoder(image).last_hidden_state for model in (trained, other))
    assert torch.equal(ours, theirs)


def test_a_key_that_it_does_not_know_is_named():
    options = {"vit_config": {"num_hidden_layers": 2}, "load_pretrained": False}
    with pytest.raises(ConfigError, match="vit_config.*num_hidden_layers"):
        load_model_and_preprocess("blip2_emac", "student_looks", options=options)
