"""The case that ships with `lavis.models.verify`, and how it is made.

    python -m tests.lavis.models.test_verify      # writes lavis/models/verify_case/ anew

The numbers come from Transformers' own classes in float64: `InstructBlipVisionModel`, `InstructBlipQFormerModel` and
`LlamaForCausalLM`, whole rows with all logits, one answer at a time, and Transformers' `generate`. Rows, labels and the
DPO loss are written out here. Of this project only the table of LAVIS's names is used, to write the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    InstructBlipQFormerConfig,
    InstructBlipQFormerModel,
    InstructBlipVisionConfig,
    InstructBlipVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from lavis.models import verify
from lavis.models.blip2_models import weights

WORDS = (
    "you are in the middle of a room see desk mug 1 2 3 on take from go to put in/on look > task is : apple fridge open"
)
SPECIAL = ["<unk>", "<s>", "</s>", "[PAD]"]
BOS, EOS, PAD = 1, 2, 3
SIZES = {
    "vit_dim": 16,
    "vit_depth": 2,
    "vit_heads": 2,
    "patch_size": 14,
    "mlp_ratio": 2,
    "img_size": 28,
    "vit": {"ln_eps": 1e-6, "qkv_bias": True},
    "q_hidden": 16,
    "q_layers": 2,
    "q_heads": 2,
    "q_inter": 32,
    "q_layer_norm_eps": 1e-12,
    "q_hidden_act": "gelu",
    "q_max_position_embeddings": 32,
    "cross_attention_freq": 2,
    "n_query": 4,
    "max_txt_len": 16,
    "max_output_txt_len": 8,
}
TEXTS = {
    "text_input": [
        "you are in the middle of a room you see a desk 1 a desk 2 a mug 1 > go to desk 1 > ",
        "task is : put a mug on desk 2 > ",
        "",
    ],
    "text_output": ["take mug 1 from desk 1", "go to desk 2", ""],
    "text_output_pos": ["take mug 1 from desk 1", "go to desk 2", "look"],
    "text_output_neg": ["look", "put mug 1 in/on desk 2 in the middle of a room", "open fridge 1"],
}
BATCH = "b3"
GENERATE = {
    "beam5": {"num_beams": 5, "max_length": 9, "min_length": 1, "repetition_penalty": 1.5, "length_penalty": 1},
    "server": {"num_beams": 5, "max_length": 12, "min_length": 5, "repetition_penalty": 1.0, "length_penalty": 0},
    "greedy": {"num_beams": 1, "max_length": 9, "min_length": 1, "repetition_penalty": 1.0, "length_penalty": 1},
}
GENERATE = {name: {"use_nucleus_sampling": False, **settings} for name, settings in GENERATE.items()}
DPO = {"avg_True_mix_0.5": (True, 0.5), "avg_False_mix_0.05": (False, 0.05)}


class Reference(nn.Module):
    """Transformers' parts in float64, with random weights, and the reference policy's own projection."""

    def __init__(self) -> None:
        super().__init__()
        vision = InstructBlipVisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            patch_size=14,
            image_size=28,
        )
        qformer = InstructBlipQFormerConfig(
            vocab_size=8,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            encoder_hidden_size=16,
            cross_attention_frequency=2,
            max_position_embeddings=32,
        )
        self.llm_config = LlamaConfig(
            vocab_size=len(SPECIAL) + len(WORDS.split()),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            bos_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=PAD,
            rms_norm_eps=1e-6,
        )
        self.vision_model = InstructBlipVisionModel(vision)
        self.vision_model.post_layernorm.eps = 1e-5  # LAVIS's ln_vision
        self.qformer = InstructBlipQFormerModel(qformer)
        self.query_tokens = nn.Parameter(torch.zeros(1, 4, 16))
        self.language_projection = nn.Linear(16, 16)
        self.ref_projection = nn.Linear(16, 16)
        self.language_model = LlamaForCausalLM(self.llm_config)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                scale = 0.3 if parameter.dim() > 1 else 0.1
                parameter.normal_(std=scale).add_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)
            for layer in self.vision_model.encoder.layers:
                layer.self_attn.qkv.bias[16:32] = 0  # LAVIS has no bias on the keys
        self.double().eval()

    def image_tokens(self, image: Tensor, projection: nn.Module) -> dict[str, Tensor]:
        """The steps from an image to image tokens, by the names of the case."""
        features = self.vision_model(image.double()).last_hidden_state
        queries = self.qformer(
            input_ids=None,
            query_embeds=self.query_tokens.expand(len(image), -1, -1),
            encoder_hidden_states=features,
        ).last_hidden_state
        return {"ln_vision": features, "qformer": queries, "llm_proj": projection(queries)}

    def logits(self, tokens: Tensor, ids: list[int]) -> Tensor:
        """Logits of one row: image tokens (Q, H), then `ids`."""
        text = self.language_model.get_input_embeddings()(torch.tensor([ids]))
        return self.language_model(inputs_embeds=torch.cat([tokens[None], text], dim=1)).logits[0]

    def answer_logps(self, tokens: Tensor, prompt: list[int], answer: list[int]) -> Tensor:
        """Log-probability of each token of one answer."""
        scores = self.logits(tokens, prompt + answer).log_softmax(-1)
        first = len(tokens) + len(prompt) - 1
        return scores[range(first, first + len(answer)), answer]


def rows(prompts: list[list[int]], answers: list[list[int]], queries: int) -> dict[str, list]:
    """What the language model reads in training, as the original pads it; labels and mask with the image tokens."""
    width = max(map(len, prompts)) + max(map(len, answers))
    ids, mask, labels = [], [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        pads = width - len(prompt) - len(answer)
        ids.append(prompt + answer + [PAD] * pads)
        mask.append([1] * (queries + width - pads) + [0] * pads)
        labels.append([-100] * (queries + len(prompt)) + answer + [-100] * pads)
    return {"llm_input_ids": ids, "attention_mask": mask, "labels": labels}


def generated(reference: Reference, tokens: Tensor, prompts: list[list[int]], settings: dict) -> Any:
    """Transformers' `generate` on left-padded prompts."""
    length = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (length - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in prompts])
    embeds = torch.cat([tokens, reference.language_model.get_input_embeddings()(ids)], dim=1)
    mask = torch.cat([torch.ones(tokens.shape[:2], dtype=torch.long), mask], dim=1)
    llm: Any = reference.language_model
    return llm.generate(
        inputs_embeds=embeds,
        attention_mask=mask,
        num_beams=settings["num_beams"],
        max_new_tokens=settings["max_length"] - 1,
        min_new_tokens=max(settings["min_length"] - 1, 0),
        repetition_penalty=float(settings["repetition_penalty"]),
        length_penalty=float(settings["length_penalty"]),
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )


def gradients(reference: Reference, loss: Tensor, name: str) -> dict[str, np.ndarray]:
    """Gradients of the projection and of the vision side's norm, under the names of the case."""
    trained = {
        "llm_proj.weight": reference.language_projection.weight,
        "llm_proj.bias": reference.language_projection.bias,
    }
    found = torch.autograd.grad(loss, list(trained.values()))
    return {f"{name}/grad/{key}": value.numpy() for key, value in zip(trained, found, strict=True)}


def recorded_dpo(
    reference: Reference, image: Tensor, ref_tokens: Tensor, logps: Callable[[Tensor, str], list[Tensor]]
) -> tuple[dict, dict]:
    """The DPO figures of every setting, and the gradients."""
    arrays: dict = {}
    dpo = {}
    for name, (average, mix) in DPO.items():
        tokens = reference.image_tokens(image, reference.language_projection)["llm_proj"]
        fold = torch.Tensor.mean if average else torch.Tensor.sum
        sides = [
            torch.stack([fold(row) for row in logps(images, key)])
            for images in (tokens, ref_tokens)
            for key in ("text_output_pos", "text_output_neg")
        ]
        chosen, rejected, ref_chosen, ref_rejected = sides
        margin = (chosen - rejected) - (ref_chosen - ref_rejected)
        loss = (-torch.nn.functional.logsigmoid(0.1 * margin) - mix * chosen).mean()
        arrays |= gradients(reference, loss, f"plain/{BATCH}/dpo/{name}")
        who = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
        dpo[name] = {f"{key}_logps": side.tolist() for key, side in zip(who, sides, strict=True)} | {
            "loss": loss.item(),
            "chosen_reward": 0.1 * (chosen - ref_chosen).mean().item(),
            "rejected_reward": 0.1 * (rejected - ref_rejected).mean().item(),
            "chosen_entropy": -chosen.mean().item(),
        }
    return dpo, arrays


@torch.no_grad()
def recorded_answers(reference: Reference, tokenizer: Tokenizer, tokens: Tensor, prompts: list[list[int]]) -> dict:
    """What every generation setting writes, as a batch and one by one."""
    generate = {}
    for name, settings in GENERATE.items():
        made = generated(reference, tokens, prompts, settings)
        alone = [generated(reference, tokens[i : i + 1], prompts[i : i + 1], settings) for i in range(3)]

        def text(row: list[int]) -> str:
            ids = row[: row.index(EOS)] if EOS in row else row
            return tokenizer.decode([i for i in ids if i > PAD]).strip()

        ids = [row[: row.index(EOS) + 1] if EOS in row else row for row in made.sequences.tolist()]
        width = max(map(len, ids))
        generate[name] = {
            "text": [text(row) for row in ids],
            "token_ids": [[1, *row, *([0] * (width - len(row)))] for row in ids],
            "one_at_a_time": [{"text": text(one.sequences[0].tolist())} for one in alone],
        }
        if settings["num_beams"] > 1:
            generate[name]["beam_scores"] = made.sequences_scores.tolist()
    return generate


def write_case(folder: Path, reference: Reference, tokenizer: Tokenizer, contents: dict, arrays: dict) -> None:
    """Write the case's files: texts and numbers, tokenizer, and the weights under LAVIS's names."""
    (folder / "llm").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "llm/tokenizer.json"), pretty=False)
    np.savez_compressed(folder / "inputs.npz", **{BATCH: arrays.pop("image")})
    np.savez_compressed(folder / "expected.npz", **arrays)
    state = {name: value.float() for name, value in reference.state_dict().items()}
    llm = {k.removeprefix("language_model."): v for k, v in state.items() if k.startswith("language_model.")}
    rest = {k: v for k, v in state.items() if not k.startswith(("language_model.", "ref_projection."))}
    lavis = weights.to_lavis(weights.to_native(rest))
    lavis |= {k.replace("projection", "llm_proj"): v for k, v in state.items() if k.startswith("ref_projection.")}
    save_file(llm, folder / "llm_state_dict.safetensors")
    save_file({name: value.contiguous() for name, value in lavis.items()}, folder / "state_dict.safetensors")


def record(folder: Path) -> None:
    """Write the case to `folder`."""
    torch.manual_seed(0)
    reference = Reference()
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS.split())}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    image = torch.randn(3, 3, 28, 28).round(decimals=3)
    prompts = [[BOS, *tokenizer.encode(text).ids] for text in TEXTS["text_input"]]
    cut = [row[:1] + row[1:][-(SIZES["max_txt_len"] - 1) :] for row in prompts]
    answers = {
        key: [[*tokenizer.encode(text).ids, EOS][: SIZES["max_output_txt_len"] - 1] for text in TEXTS[key]]
        for key in ("text_output", "text_output_pos", "text_output_neg")
    }
    steps = reference.image_tokens(image, reference.language_projection)
    tokens = steps["llm_proj"]
    arrays = {f"plain/{BATCH}/mid/{key}": value.detach().numpy() for key, value in steps.items()}

    def logps(tokens: Tensor, key: str) -> list[Tensor]:
        return [reference.answer_logps(*row) for row in zip(tokens, cut, answers[key], strict=True)]

    loss = -torch.cat(logps(tokens, "text_output")).mean()
    arrays |= gradients(reference, loss, f"plain/{BATCH}/forward")
    forward = {"loss": loss.item(), **rows(cut, answers["text_output"], 4)}
    ref_tokens = reference.image_tokens(image, reference.ref_projection)["llm_proj"].detach()
    dpo, found = recorded_dpo(reference, image, ref_tokens, logps)
    arrays |= found
    sides = {"chosen": "text_output_pos", "rejected": "text_output_neg"}
    generate = recorded_answers(reference, tokenizer, tokens, prompts)
    batch = {
        "forward": forward,
        "dpo": dpo,
        "dpo_tokens": {side: rows(cut, answers[key], 4) for side, key in sides.items()},
        "generate": generate,
    }
    length = max(map(len, prompts))
    padded = {BATCH: [[PAD] * (length - len(row)) + row for row in prompts]}
    contents = {
        "config.json": SIZES,
        "inputs.json": {"batches": {BATCH: TEXTS}, "generate_settings": GENERATE},
        "prompt_ids.json": padded,
        "expected.json": {"plain": {BATCH: batch}},
        "llm/config.json": {**reference.llm_config.to_diff_dict(), "model_type": "llama"},
    }
    write_case(folder, reference, tokenizer, contents, {**arrays, "image": image.numpy()})


def test_the_shipped_case_passes(capsys: pytest.CaptureFixture) -> None:
    assert verify.main([]) == 0
    out = capsys.readouterr().out
    assert " quantities match" in out and "FAIL" not in out
    assert "not from the original" in out.splitlines()[-1]


def test_the_shipped_case_is_small_and_complete() -> None:
    files = [file for file in verify.SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300_000
    names = [check.name for check in verify.checks(verify.SHIPPED)]
    for part in ("forward/loss", "forward/grad/llm_proj.weight", "dpo/avg_True_mix_0.5/loss", "generate/server/text"):
        assert f"plain/{BATCH}/{part}" in names


def test_the_shipped_numbers_are_transformers(tmp_path: Path) -> None:
    """Recorded anew here, the case has the same numbers."""
    record(tmp_path)
    shipped, made = (verify.Case.read(folder) for folder in (verify.SHIPPED, tmp_path))
    assert made.prompt_ids == shipped.prompt_ids and made.inputs == shipped.inputs
    for key, value in made.arrays.items():
        assert np.allclose(shipped.arrays[key], value, rtol=1e-6, atol=1e-9), key
    new, old = (case.expected["plain"][BATCH] for case in (made, shipped))
    assert new["forward"]["loss"] == pytest.approx(old["forward"]["loss"])
    assert [new["generate"][name]["text"] for name in GENERATE] == [old["generate"][name]["text"] for name in GENERATE]


def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    record(tmp_path)
    state = weights.read_state(tmp_path / "state_dict.safetensors")
    state["llm_proj.weight"][0, 0] += 0.05
    save_file(state, tmp_path / "state_dict.safetensors")
    assert verify.main([str(tmp_path)]) == 1


if __name__ == "__main__":
    record(verify.SHIPPED)
