"""Compares Blip2Emac with recorded numbers.

    python -m lavis.models.verify               # the case that ships with the project
    python -m lavis.models.verify CASE_DIR      # another, such as one recorded from the original's code

The shipped case (`verify_case/`) was not recorded from the original, whose code is not part of this project. Its
numbers come from Transformers' own InstructBLIP and Llama classes in float64 and the published formulas (made by
`tests/lavis/models/test_verify.py`). So it shows that this installation loads LAVIS's names and computes losses,
log-probabilities, gradients and beam search as those do. That these equal the original's is what a case recorded from
the original shows.

A case directory holds `config.json` (sizes), `state_dict.pth` and `state_dict_qtext.pth` (LAVIS names), the language
model (`llm/`, `llm_state_dict.pth`; all three may be `.safetensors`), a BERT vocabulary (`bert_tokenizer/`), inputs and
what was computed from them (`expected.json`, `expected.npz`). Every quantity is printed with its largest relative
error. The exit code is 0 only if all match: ids, labels and texts exactly, numbers within `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lavis.common.program import read_first, run_program

SHIPPED = Path(__file__).with_name("verify_case")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare Blip2Emac with recorded numbers.")
    parser.add_argument("case", type=Path, nargs="?", default=SHIPPED, help="case directory (default: the shipped one)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import numpy as np
import torch
from torch import Tensor

from lavis.common.devices import set_threads
from lavis.common.errors import EmacError, MissingFileError
from lavis.common.registry import registry
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.text import Rows, encode_prompts, prompt_rows, training_rows
from lavis.models.student import questions_of

TOLERANCE = 1e-4  # relative; absolute where the recorded number is near 0; of the largest element for gradients
_CASE_FILES = ("config.json", "inputs.json", "prompt_ids.json", "expected.json", "inputs.npz", "expected.npz")
VARIANTS = {"plain": "state_dict", "qtext": "state_dict_qtext"}


@dataclass(frozen=True)
class Check:
    """One quantity: its name, the largest relative error (0 or inf for exact things), and whether it matches."""

    name: str
    error: float

    @property
    def ok(self) -> bool:
        """Whether the quantity matches; NaN never does."""
        return self.error <= TOLERANCE


def exact(name: str, got: object, want: object) -> Check:
    """Check of something that must be equal."""
    return Check(name, 0.0 if got == want else float("inf"))


def close(name: str, got: Tensor | Sequence | float | None, want: object, *, whole: bool = False) -> Check:
    """Check of numbers: each relative to itself (at least 1), or all relative to the largest (`whole`, gradients)."""
    found, known = (np.asarray(x.detach() if isinstance(x, Tensor) else x, dtype=np.float64) for x in (got, want))
    if found.shape != known.shape:
        return Check(f"{name} (shape {found.shape}, recorded {known.shape})", float("inf"))
    # Gradients of one tensor differ by orders of magnitude, and rounding is that of the largest: `whole` compares so.
    scale = max(float(np.abs(known).max(initial=0)), 1e-30) if whole else np.maximum(np.abs(known), 1.0)
    return Check(name, float((np.abs(found - known) / scale).max(initial=0)))


@dataclass(frozen=True)
class Case:
    """A case directory, read."""

    folder: Path
    sizes: Mapping[str, Any]
    inputs: Mapping[str, Mapping]
    images: Mapping[str, np.ndarray]
    prompt_ids: Mapping[str, Any]
    expected: Mapping[str, Mapping]
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path) -> Case:
        """Read `folder`; a missing file is a MissingFileError that names it."""
        for name in _CASE_FILES:
            if not (folder / name).is_file():
                raise MissingFileError(f"{folder} is no case directory: it has no {name}")
        texts = {
            name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("config", "inputs", "prompt_ids", "expected")
        }
        with np.load(folder / "inputs.npz") as images, np.load(folder / "expected.npz") as arrays:
            return cls(
                folder,
                texts["config"],
                texts["inputs"],
                dict(images),
                texts["prompt_ids"],
                texts["expected"],
                dict(arrays),
            )

    def model(self, variant: str) -> Blip2Emac:
        """The model of this case, through the public loading path."""
        c = self.sizes
        config = {
            "vit_model": "custom",
            "vit_config": {
                "hidden_size": c["vit_dim"],
                "num_hidden_layers": c["vit_depth"],
                "num_attention_heads": c["vit_heads"],
                "patch_size": c["patch_size"],
                "intermediate_size": int(c["vit_dim"] * c["mlp_ratio"]),
                "layer_norm_eps": c["vit"]["ln_eps"],
                "qkv_bias": c["vit"]["qkv_bias"],
            },
            "img_size": c["img_size"],
            "qformer_config": {
                "hidden_size": c["q_hidden"],
                "num_hidden_layers": c["q_layers"],
                "num_attention_heads": c["q_heads"],
                "intermediate_size": c["q_inter"],
                "layer_norm_eps": c["q_layer_norm_eps"],
                "hidden_act": c["q_hidden_act"],
                "max_position_embeddings": c["q_max_position_embeddings"],
                "cross_attention_frequency": c["cross_attention_freq"],
            },
            "num_query_token": c["n_query"],
            "qformer_text_input": variant == "qtext",
            "bert_tokenizer": str(self.folder / "bert_tokenizer"),
            "llm_model": str(self.folder / "llm"),
            "llm_weights": self._weights("llm_state_dict"),
            "pretrained": self._weights(VARIANTS[variant]),
            "freeze_ln_vision": False,  # the original's: its ln_vision gradients are recorded too
            "max_txt_len": c["max_txt_len"],
            "max_output_txt_len": c["max_output_txt_len"],
        }
        return registry.get_model_class("blip2_emac").from_config(config).eval()

    def _weights(self, stem: str) -> str:
        """The file of weights called `stem`, with either ending."""
        file = self.folder / f"{stem}.safetensors"
        return str(file if file.is_file() else file.with_suffix(".pth"))

    def samples(self, batch: str) -> dict[str, Any]:
        """The inputs of `batch`, as `forward` and `dpo_forward` take them; `prompt` for `generate`."""
        texts = self.inputs["batches"][batch]
        return {"image": torch.from_numpy(self.images[batch]), "prompt": texts["text_input"], **texts}


def padded(rows: Tensor, width: int, value: int) -> list[list[int]]:
    """Rows as lists, padded on the right to `width` (the original keeps columns that are pads in every row)."""
    return [row + [value] * (width - len(row)) for row in rows.tolist()]


def rows_of(model: Blip2Emac, prompts: Sequence[str], outputs: Sequence[str]) -> Rows:
    """What the language model reads behind the image tokens in training, cut and padded, with labels."""
    answers = [answer for (answer,) in model.answer_ids([[text] for text in outputs])]
    return training_rows(model.prompt_ids(prompts), answers, model.llm_tokenizer.pad_id)


def check_rows(
    name: str, model: Blip2Emac, prompts: Sequence[str], outputs: Sequence[str], want: Mapping
) -> Iterator[Check]:
    """The language model's input ids, mask and labels against the recorded ones (mask and labels with the queries)."""
    rows = rows_of(model, prompts, outputs)
    queries = model.query_tokens.shape[1]
    width = len(want["llm_input_ids"][0])
    yield exact(f"{name}/llm_input_ids", padded(rows.ids, width, model.llm_tokenizer.pad_id), want["llm_input_ids"])
    # Image tokens come first: they are always read (mask 1), and nothing is predicted at them (-100, which
    # cross-entropy ignores).
    masks = [[1] * queries + row for row in padded(rows.mask, width, 0)]
    yield exact(f"{name}/attention_mask", masks, want["attention_mask"])
    labels = [[-100] * queries + row for row in padded(rows.labels, width, -100)]
    yield exact(f"{name}/labels", labels, want["labels"])


def check_gradients(name: str, model: Blip2Emac, arrays: Mapping[str, np.ndarray]) -> Iterator[Check]:
    """Gradients of what trains against the recorded ones under `name/grad/`."""
    prefix = f"{name}/grad/"
    parameters = dict(model.named_parameters())
    for key in (k for k in arrays if k.startswith(prefix)):
        gradient = parameters[key.removeprefix(prefix)].grad
        yield close(key, gradient if gradient is not None else [], arrays[key], whole=True)


def check_forward(case: Case, model: Blip2Emac, variant: str, batch: str) -> Iterator[Check]:
    """Rows, loss and gradients of `forward`."""
    name, samples, want = f"{variant}/{batch}/forward", case.samples(batch), case.expected[variant][batch]["forward"]
    yield from check_rows(name, model, samples["text_input"], samples["text_output"], want)
    # None and not 0: a weight that the loss does not reach is then told from one with a gradient of 0.
    model.zero_grad(set_to_none=True)
    loss = model(samples)["loss"]
    loss.backward()
    yield close(f"{name}/loss", loss, want["loss"])
    yield from check_gradients(name, model, case.arrays)


def check_dpo(case: Case, model: Blip2Emac, variant: str, batch: str) -> Iterator[Check]:
    """`dpo_forward` at every recorded setting: per-sample log-probabilities, loss, rewards, gradients."""
    samples, want = case.samples(batch), case.expected[variant][batch]
    tokens = want.get("dpo_tokens", {})
    for side, key in (("chosen", "text_output_pos"), ("rejected", "text_output_neg")):
        if side in tokens:
            yield from check_rows(
                f"{variant}/{batch}/dpo_tokens/{side}", model, samples["text_input"], samples[key], tokens[side]
            )
    for setting, numbers in want.get("dpo", {}).items():
        name = f"{variant}/{batch}/dpo/{setting}"
        _, average, _, mix = setting.split("_")  # avg_True_mix_0.5
        model.avg_log_probs, model.mix_ratio = average == "True", float(mix)
        with torch.no_grad():
            policy = model.sequence_logps(samples, "text_output_pos", "text_output_neg")
        # The case's weights have brought the reference policy, too (names with `ref_`).
        reference = model.reference_logps(samples)
        for who, logps in (("policy", policy), ("ref", reference)):
            for side, values in zip(("chosen", "rejected"), logps, strict=True):
                yield close(f"{name}/{who}_{side}_logps", values, numbers[f"{who}_{side}_logps"])
        model.zero_grad(set_to_none=True)
        result = model.dpo_forward(samples)
        result["loss"].backward()
        for key in ("loss", "chosen_reward", "rejected_reward", "chosen_entropy"):
            yield close(f"{name}/{key}", result[key], numbers[key])
        yield from check_gradients(name, model, case.arrays)


def check_intermediates(case: Case, model: Blip2Emac, variant: str, batch: str) -> Iterator[Check]:
    """The recorded intermediate tensors of a batch, as many as there are."""
    # If a check of losses fails, these tell from which part on the numbers differ.
    samples, prefix = case.samples(batch), f"{variant}/{batch}/mid/"
    recorded = {k.removeprefix(prefix): v for k, v in case.arrays.items() if k.startswith(prefix)}
    with torch.no_grad():
        encoded = model.visual_encoder(samples["image"]).last_hidden_state
        queries = model.vision.encode_queries(samples["image"], samples["text_input"])
        tokens = model.llm_proj(queries)
        values = {
            "visual_encoder": encoded,
            "ln_vision": model.vision.encode_image(samples["image"]),
            "qformer": queries,
            "llm_proj": tokens,
        }
        for key in (k for k in values if k in recorded):
            yield close(prefix + key, values[key], recorded[key])
        if "forward_logits" in recorded:
            rows = rows_of(model, samples["text_input"], samples["text_output"])
            # The row that the language model reads: [image tokens][prompt][answer][pads], (N, Q + L, H).
            embeds = torch.cat([tokens, model.llm_model.get_input_embeddings()(rows.ids)], dim=1)
            # Only real positions: what a model computes at pads depends on how it masks them.
            seen = torch.cat([torch.ones(tokens.shape[:2], dtype=torch.bool), rows.mask.bool()], dim=1).numpy()
            want = recorded["forward_logits"][:, : seen.shape[1]]
            yield close(
                prefix + "forward_logits", model.llm_model(inputs_embeds=embeds).logits.numpy()[seen], want[seen]
            )


def check_generate(case: Case, model: Blip2Emac, variant: str, batch: str) -> Iterator[Check]:
    """`generate` at every recorded setting: prompt ids, new ids, beam scores, texts, and each row alone."""
    samples, recorded = case.samples(batch), case.expected[variant][batch].get("generate", {})
    defaults = {"top_p": 0.9, "num_captions": 1, "temperature": 1}
    for setting, want in recorded.items():
        name, options = (
            f"{variant}/{batch}/generate/{setting}",
            {**defaults, **case.inputs["generate_settings"][setting]},
        )
        yield exact(f"{name}/text", model.generate(samples, **options), want["text"])
        made = model.write_ids(questions_of(samples, samples["prompt"]), **options)
        ids = [[1, *row] for row in made.ids.tolist()]  # sequences of the original's Transformers begin with a BOS
        yield exact(f"{name}/token_ids", ids, want["token_ids"])
        if want.get("beam_scores") is not None:
            yield close(f"{name}/beam_scores", made.scores, want["beam_scores"])
        # Beams of one prompt must not depend on the prompts beside it, nor on the pads that these bring.
        alone = [
            model.generate({"image": samples["image"][i : i + 1], "prompt": [prompt]}, **options)[0]
            for i, prompt in enumerate(samples["prompt"])
        ]
        yield exact(f"{name}/one_at_a_time", alone, [row["text"] for row in want["one_at_a_time"]])


def checks(folder: Path) -> Iterator[Check]:
    """Every check of the case in `folder`."""
    case = Case.read(folder)
    for variant in (v for v in VARIANTS if v in case.expected):
        model = case.model(variant)
        # The left-padded prompt ids of generation. They do not depend on the Q-Former, so one variant shows them.
        for batch, ids in case.prompt_ids.items() if variant == "plain" else ():
            prompts = case.samples(batch)["prompt"]
            rows = prompt_rows(encode_prompts(model.llm_tokenizer, prompts), model.llm_tokenizer.pad_id)
            yield exact(f"prompt_ids/{batch}", rows.ids.tolist(), ids["input_ids"] if isinstance(ids, dict) else ids)
        for batch, recorded in case.expected[variant].items():
            yield from check_forward(case, model, variant, batch)
            yield from check_intermediates(case, model, variant, batch)
            yield from check_dpo(case, model, variant, batch)
            yield from check_generate(case, model, variant, batch)
            # BERT's ids and mask, which only the Q-Former of this variant reads.
            if variant == "qtext" and (words := recorded.get("qformer_text")) is not None:
                tokens = model.vision.text_tokens(case.samples(batch)["text_input"])
                for key in ("input_ids", "attention_mask"):
                    yield exact(f"qtext/{batch}/qformer_text/{key}", tokens[key].tolist(), words[key])


def main(argv: Sequence[str] | None = None) -> int:
    """Print every check; the exit code."""
    arguments = parse_arguments(argv)
    set_threads(1)  # the matrices are tiny: more threads would only wait for one another
    done: list[Check] = []
    try:
        for check in checks(arguments.case):
            done.append(check)
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.error:9.2e}  {check.name}", flush=True)
    except EmacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failed = sum(not check.ok for check in done)
    print(f"{len(done) - failed} of {len(done)} quantities match; largest error {max(c.error for c in done):.2e}")
    if arguments.case == SHIPPED:
        print("recorded from Transformers' own classes in float64, not from the original: that needs a CASE_DIR")
    return 1 if failed else 0


if __name__ == "__main__":
    run_program(main)
