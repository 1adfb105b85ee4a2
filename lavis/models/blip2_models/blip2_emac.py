"""Blip2Emac: the vision-language policy of EMAC+ (image, prompt) -> action text.

    image -> visual_encoder -> ln_vision -> Qformer(query_tokens) -> llm_proj -> [image tokens][prompt][answer] -> LLM

This file puts the parts together and holds the three public calls: `forward` (behavioural cloning), `dpo_forward` (DPO
against a frozen reference policy) and `generate`. Which parts train is set in the config (`freeze_*`); for the real
sizes only `llm_proj` trains. Their building blocks are its base classes, each in a module of its own:

    emac_config.py       every key of the config's `model:` section, its default and its checks
    emac_parts.py        EmacParts: the parts, and from an image to image tokens
    emac_weights.py      EmacWeights: checkpoints in and out, hashes, DPO's reference policy
    emac_scoring.py      EmacScoring: log-probabilities of given answers (`sequence_logps`, `score`)
    emac_generation.py   EmacGeneration: token ids of new answers
    ../fast_llm          the language model's fast paths, each tested against Transformers' own

Shapes: N samples, Q query (image) tokens, L text tokens, H hidden size of the language model, S image side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import BertTokenizer, InstructBlipQFormerModel, InstructBlipVisionModel, PreTrainedModel

from lavis.common.registry import registry
from lavis.models import fast_llm
from lavis.models.blip2_models import adapters, weights
from lavis.models.blip2_models.blip2 import dtype_named
from lavis.models.blip2_models.emac_config import (
    MODEL_TYPES,
    check_files,
    checked_options,
    frozen_parts,
    key_named,
    lora_options,
    package_path,
    required_parts,
)
from lavis.models.blip2_models.emac_generation import EmacGeneration
from lavis.models.blip2_models.emac_parts import Samples, sample_texts
from lavis.models.blip2_models.losses import DpoParts, dpo_loss
from lavis.models.blip2_models.text import LlmTokenizer, load_llm_tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self


@registry.register_model("blip2_emac")
class Blip2Emac(EmacGeneration):
    """The policy; build it with `from_config` (or `lavis.models.load_model_and_preprocess`)."""

    PRETRAINED_MODEL_CONFIG_DICT = MODEL_TYPES

    # ---- assembly ---------------------------------------------------------------------------------------------------

    def __init__(
        self,
        *,
        visual_encoder: InstructBlipVisionModel,
        ln_vision: nn.Module,
        qformer: InstructBlipQFormerModel,
        query_tokens: nn.Parameter,
        llm_model: PreTrainedModel,
        llm_tokenizer: LlmTokenizer,
        qformer_tokenizer: BertTokenizer | None = None,
        frozen: Sequence[str] = ("visual_encoder", "ln_vision", "Qformer", "query_tokens", "llm_model"),
        max_txt_len: int = 128,
        max_output_txt_len: int = 256,
        avg_log_probs: bool = True,
        mix_ratio: float = 0.5,
        prompt: str = "",
        amp: torch.dtype | None = None,
        low_memory: bool = False,
        cut_prompts: bool = False,
    ) -> None:
        """Put built parts together; `frozen` names those of `emac_config.PARTS` that never train.

        With a `qformer_tokenizer` the Q-Former reads the prompt too (`qformer_text_input`). `low_memory` recomputes
        the language model's activations in the backward pass (gradient checkpointing) instead of keeping them.
        """
        super().__init__()
        self.visual_encoder = visual_encoder
        self.ln_vision = ln_vision
        self.Qformer = qformer
        self.query_tokens = query_tokens
        self.llm_model = llm_model
        self.llm_proj = nn.Linear(qformer.config.hidden_size, llm_model.config.hidden_size)
        self.reference: nn.Module | None = None
        self.llm_tokenizer = llm_tokenizer
        self.qformer_tokenizer = qformer_tokenizer
        self.frozen = tuple(frozen)
        self.max_txt_len = max_txt_len
        self.max_output_txt_len = max_output_txt_len
        self.avg_log_probs = avg_log_probs
        self.mix_ratio = mix_ratio
        self.prompt = prompt
        self.amp = amp
        self.cut_prompts = cut_prompts
        self.sources = {}
        self.required_parts = ()  # of a config (`from_config`); whoever gives built parts knows where they come from
        for part in self.frozen:
            getattr(self, part).requires_grad_(False)
        if low_memory:
            llm_model.gradient_checkpointing_enable({"use_reentrant": False})

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> Self:
        """Build from the `model:` section (keys: `emac_config.CONFIG_DEFAULTS`); the same config, the same weights.

        Loads, in this order and as far as they are set: `llm_weights`, `base_model`, `vit_weights` where that brought
        no vision encoder, `pretrained`, `ref_pretrained`. All are looked at before anything is built (`check_files`).
        Raises ConfigError, which names the key, for unknown keys and bad values; MissingFileError and WeightsError for
        files. `sources` then says what came from where; `require_sources` refuses random weights.
        """
        options = checked_options(cfg)
        check_files(options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options["init_seed"])
            model = cls._built(options)
        model.required_parts = tuple(required_parts(options))
        if not options["llm_config"] and not options["llm_weights"]:
            model.sources["llm_model"] = str(options["llm_model"])
        if options["llm_weights"]:
            with key_named("llm_weights", options):
                model.load_llm(package_path(options["llm_weights"]))
        if options["load_basemodel"]:
            with key_named("base_model", options):
                model.load_checkpoint(package_path(options["base_model"]))
        if options["vit_weights"] and "visual_encoder" not in model.sources:
            with key_named("vit_weights", options):
                model.load_vision(package_path(options["vit_weights"]))
        if options["load_pretrained"] and options["pretrained"]:
            with key_named("pretrained", options):
                model.load_checkpoint(package_path(options["pretrained"]))
        if options["ref_pretrained"]:
            with key_named("ref_pretrained", options):
                path = package_path(options["ref_pretrained"])
                model.set_reference(weights.read_state(path), source=path)
        return model

    @classmethod
    def _built(cls, options: Mapping[str, Any]) -> Self:
        """The model with random weights where Transformers loads none."""
        key = "llm_tokenizer" if options["llm_tokenizer"] else "llm_model"
        tokenizer = load_llm_tokenizer(package_path(options[key]), f"model.{key}")
        encoder, ln_vision = cls.init_vision_encoder(
            options["vit_model"], options["img_size"], options["vit_config"], options["vit_precision"]
        )
        reads_text = options["qformer_text_input"]
        bert = cls.init_bert_tokenizer(options["bert_tokenizer"]) if reads_text else None
        qformer_sizes = {**options["qformer_config"], **({"vocab_size": len(bert)} if bert else {})}
        qformer, queries = cls.init_qformer(
            options["num_query_token"], encoder.config.hidden_size, qformer_sizes, reads_text
        )
        llm = cls.init_llm(
            package_path(options["llm_model"]),
            options["llm_config"],
            options["llm_weights"],
            options["llm_dtype"],
            len(tokenizer),
        )
        if options["adaptor_tuning"]:
            adapters.tune_adaptors(qformer, queries)
        model = cls(
            visual_encoder=encoder,
            ln_vision=ln_vision,
            qformer=qformer,
            query_tokens=queries,
            llm_model=llm,
            llm_tokenizer=tokenizer,
            qformer_tokenizer=bert,
            frozen=frozen_parts(options),
            max_txt_len=options["max_txt_len"],
            max_output_txt_len=options["max_output_txt_len"],
            avg_log_probs=options["avg_log_probs"],
            mix_ratio=options["mix_ratio"],
            prompt=options["prompt"],
            amp=dtype_named(options["amp"], "amp") if options["amp"] else None,
            low_memory=options["low_memory"],
            cut_prompts=options["cut_prompts"],
        )
        if options["lora_rank"]:  # last, so that the other weights begin as they do without adapters
            adapters.add_lora(llm, **lora_options(options))
        return model

    # ---- behavioural cloning ----------------------------------------------------------------------------------------

    def forward(self, samples: Samples) -> dict[str, Tensor]:
        """Behavioural cloning: `{"loss"}`, the mean over the batch's output tokens of their negative log-probability.

        `samples`: `image` (N, 3, S, S), `text_input` and `text_output`, N strings each. Where the vision encoder and
        the Q-Former are frozen, `query_output` (what `encode_queries` gave) may replace `image`.
        """
        prompts, outputs = sample_texts(samples, "text_input", "text_output")
        with self.maybe_autocast():
            image_tokens = self.image_tokens(samples, prompts)
            if not self._only_input_trains(image_tokens):
                sums, counts = self.answer_sums(image_tokens, prompts, [outputs])
                return {"loss": -sums.sum() / counts.sum()}
            answers = self.encode_answers(zip(outputs, strict=True))
            count = sum(len(answer) for (answer,) in answers)
            sums, surrogate = self.logps_by_rows(image_tokens, prompts, answers, lambda sums, rows: -sums.sum() / count)
        return {"loss": -sums.sum() / count + surrogate}

    def _only_input_trains(self, image_tokens: Tensor) -> bool:
        """Whether the language model's activations serve only the gradient of the image tokens.

        Then both losses take that gradient a few rows at a time (`fast_llm.values_by_rows`).
        """
        return (
            torch.is_grad_enabled()
            and image_tokens.requires_grad
            and fast_llm.supports(self.llm_model)
            and not any(parameter.requires_grad for parameter in self.llm_model.parameters())
        )

    # ---- DPO --------------------------------------------------------------------------------------------------------

    def dpo_forward(self, samples: Samples) -> dict[str, Tensor]:
        """DPO: `{"loss", "chosen_reward", "rejected_reward", "chosen_entropy"}`, scalars.

        `samples`: `image`, `text_input`, `text_output_pos` (the expert's answer), `text_output_neg` (the policy's);
        optionally `ref_logps_pos` and `ref_logps_neg` (N,), which replace the reference policy's computation.
        """
        return self.dpo_parts(samples)._asdict()

    def dpo_parts(self, samples: Samples) -> DpoParts:
        """All parts of the DPO loss for `samples` (as `dpo_forward`)."""
        prompts, *outputs = sample_texts(samples, "text_input", "text_output_pos", "text_output_neg")
        if "ref_logps_pos" in samples and "ref_logps_neg" in samples:
            known = torch.stack([samples["ref_logps_pos"], samples["ref_logps_neg"]], dim=1).float().to(self.device)
        else:
            samples = self.encoded_once(samples)
            known = torch.stack(self.reference_logps(samples), dim=1)

        def parts(logps: Tensor, known: Tensor) -> DpoParts:
            return dpo_loss(*logps.unbind(1), *known.unbind(1), beta=self.dpo_beta, mix_ratio=self.mix_ratio)

        with self.maybe_autocast():
            image_tokens = self.image_tokens(samples, prompts)
            if not self._only_input_trains(image_tokens):
                return parts(self.answer_logps(image_tokens, prompts, outputs), known)
            answers = self.encode_answers(zip(*outputs, strict=True))
            counts = known.new_ones(known.shape)
            if self.avg_log_probs:
                counts = known.new_tensor([[len(answer) for answer in group] for group in answers])
            logps, surrogate = self.logps_by_rows(
                image_tokens,
                prompts,
                answers,
                lambda sums, rows: parts(sums / counts[rows], known[rows]).loss * (len(rows) / len(prompts)),
            )
        whole = parts(logps / counts, known)
        return whole._replace(loss=whole.loss + surrogate)

    # ---- acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        samples: Samples,
        use_nucleus_sampling: bool = False,
        num_beams: int = 5,
        max_length: int = 256,
        min_length: int = 1,
        top_p: float = 0.9,
        repetition_penalty: float = 1.5,
        length_penalty: float = 1,
        num_captions: int = 1,
        temperature: float = 1,
    ) -> list[str]:
        """Answers for `samples` {"image", "prompt"}; N * num_captions strings.

        `image` is (N, 3, S, S) or video (N, frames, 3, S, S); `prompt` N strings or one for all (else the config's).
        Lengths count as in the original, whose generation began with a BOS: `max_length=32` allows 31 new tokens,
        `min_length=1` demands none.
        """
        made = self.generate_ids(
            samples,
            use_nucleus_sampling=use_nucleus_sampling,
            num_beams=num_beams,
            max_length=max_length,
            min_length=min_length,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            length_penalty=length_penalty,
            num_captions=num_captions,
            temperature=temperature,
        )
        eos = self.llm_tokenizer.eos_id
        # The original turned id 0 into 2 (unk into eos) before decoding, which drops it from the text.
        return [self.llm_tokenizer.decode([i or eos for i in row]).strip() for row in made.ids.tolist()]
