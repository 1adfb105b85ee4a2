"""LAVIS's base class of BLIP-2 models, for a model of a third party that is written to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lavis.common.errors import ConfigError
from lavis.models.blip2_models.blip2 import Blip2Base, disabled_train, init_llm

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 9}


class Pooled(Blip2Base):
    """A model as LAVIS's own are written: a frozen encoder, a Q-Former that looks at it, a head."""

    def __init__(self, vocabulary: str) -> None:
        super().__init__()
        self.tokenizer = self.init_tokenizer(truncation_side="left", name_or_path=vocabulary)
        self.visual_encoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout())
        for parameter in self.visual_encoder.parameters():
            parameter.requires_grad = False
        self.visual_encoder = self.visual_encoder.eval()
        self.visual_encoder.train = disabled_train.__get__(self.visual_encoder)
        self.Qformer, self.query_tokens = self.init_Qformer(3, 8, cross_attention_freq=1, **SIZES)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, samples: dict) -> dict:
        with self.maybe_autocast():
            image_embeds = self.visual_encoder(samples["image"])
        text = self.tokenizer(samples["text_input"], return_tensors="pt", padding=True)
        queries = self.query_tokens.expand(len(image_embeds), -1, -1)
        seen = torch.ones(image_embeds.shape[:-1], dtype=torch.long)
        mask = torch.cat([torch.ones(queries.shape[:2], dtype=torch.long), text.attention_mask], dim=1)
        looks = {"encoder_hidden_states": image_embeds, "encoder_attention_mask": seen, "return_dict": True}
        alone = self.Qformer.bert(query_embeds=queries, **looks).last_hidden_state
        both = self.Qformer.bert(text.input_ids, attention_mask=mask, query_embeds=queries, **looks).last_hidden_state
        assert alone.shape == (2, 3, 16) and both.shape == (2, 3 + text.input_ids.shape[1], 16)
        return {"loss": self.head(alone + both[:, :3]).square().mean()}


@pytest.fixture
def model(tmp_path: Path) -> Pooled:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "is", "it"]))
    torch.manual_seed(0)
    return Pooled(str(tmp_path))


def test_a_model_with_lavis_qformer(model: Pooled) -> None:
    assert model.tokenizer.truncation_side == "left" and model.tokenizer.bos_token == "[DEC]"
    model.train()
    assert model.training and not model.visual_encoder.training and not model.visual_encoder[1].training
    samples = {"image": torch.randn(2, 5, 4), "text_input": ["what is it", "what"]}
    loss = model(samples)["loss"]
    loss.backward()
    assert model.query_tokens.grad.abs().max() > 0 and model.visual_encoder[0].weight.grad is None
    trained = sum(len(group["params"]) for group in model.get_optimizer_params(0.05))
    assert trained == len(list(model.parameters())) - 2


def test_a_size_of_another_type_is_one_line():
    """Before, Transformers' traceback."""
    with pytest.raises(ConfigError, match="^model.llm_config: .*Field 'hidden_size' expected int, got str"):
        init_llm("", {"model_type": "qwen2", "hidden_size": "wide"}, "", "float32", 40)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("falcon_h1", {"lm_head_multiplier": 0.5, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8}),
        ("roberta", {"is_decoder": True}),  # its head has a layer of its own before the output embeddings
        ("modernbert-decoder", {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}),  # as RoBERTa
        ("llama4_text", {"num_local_experts": 2, "intermediate_size_mlp": 48, "head_dim": 8, "pad_token_id": 0}),
    ],
)
def test_a_language_model_with_another_head_is_refused(kind: str, sizes: dict) -> None:
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"model_type": kind, "vocab_size": 40, "num_key_value_heads": 4, **sizes}
    with pytest.raises(ConfigError, match="not the product of its decoder's output and its output embeddings"):
        init_llm("", config, "", "float32", 40)


@pytest.mark.parametrize(
    ("kind", "sizes", "said"),
    [
        ("rwkv", {}, "a RwkvForCausalLM takes no cache"),
        ("minimax", {"num_attention_heads": 4, "num_key_value_heads": 4}, "MiniMax uses cache of its own"),
    ],
)
def test_a_language_model_without_a_cache_of_transformers_is_refused(kind: str, sizes: dict, said: str) -> None:
    config = {"model_type": kind, "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, **sizes}
    with pytest.raises(ConfigError, match=rf"^model\.llm_config: {said}"):
        init_llm("", config, "", "float32", 40)


@pytest.mark.parametrize(
    ("kind", "more"), [("qwen2", {}), ("gpt2", {}), ("bloom", {}), ("granite", {"logits_scaling": 1.0})]
)
def test_other_language_models_are_taken(kind: str, more: dict) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = {"model_type": kind, "vocab_size": 40, **sizes, **more}
    assert init_llm("", config, "", "bfloat16", 40).training


@pytest.mark.parametrize("kind", ["bloom", "codegen"])
def test_a_language_model_with_attention_of_its_own_stays_causal(kind: str) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "rotary_dim": 4}
    llm = init_llm("", {"model_type": kind, "vocab_size": 40, **sizes}, "", "float32", 40).eval()
    for parameter in llm.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    one, other = llm(input_ids=torch.tensor([[5, 6, 7], [5, 6, 8]])).logits
    torch.testing.assert_close(one[:2], other[:2])


def test_sizes_that_do_not_fit_one_another_are_told_in_a_line() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 8}
    with pytest.raises(ConfigError, match=r"^model\.llm_config: "):
        init_llm("", {"model_type": "qwen2", "vocab_size": 40, **sizes}, "", "float32", 40)
