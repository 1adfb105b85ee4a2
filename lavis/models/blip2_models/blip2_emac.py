"""Blip2Emac: the vision-language policy of EMAC+ (image, prompt) -> action text.

    image -> visual_encoder -> ln_vision -> Qformer(query_tokens) -> llm_proj -> [image tokens][prompt][answer] -> LLM

Three public calls: `forward` (behavioural cloning), `dpo_forward` (DPO against a frozen reference), `generate`; beside
them `score`, the log-probability of given answers. Which parts train is the config's matter (`freeze_*`); for the real
sizes only `llm_proj` does.

Shapes: N samples, Q query (image) tokens, L text tokens, H hidden size of the LLM, S image side.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from transformers import BatchEncoding, BertTokenizerFast, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from lavis.common.config import load_yaml
from lavis.common.registry import registry
from lavis.models.base_model import LIBRARY_ROOT
from lavis.models.blip2_models import adapters, answer_tree, llama, weights
from lavis.models.blip2_models.blip2 import Blip2Base, dtype_named
from lavis.models.blip2_models.decoding import BeamSettings, beam_search, greedy, pads_after
from lavis.models.blip2_models.losses import BETA, DpoParts, dpo_loss
from lavis.models.blip2_models.row_gradients import chunked, values_by_rows
from lavis.models.blip2_models.text import (
    IGNORE,
    LlmTokenizer,
    Rows,
    encode_output,
    encode_prompts,
    load_llm_tokenizer,
    prompt_rows,
    training_rows,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# Every key that the `model:` section may have, with its default; the original's names, then ours.
CONFIG_DEFAULTS: dict[str, object] = {
    "arch": "blip2_emac",
    "model_type": "",
    "vit_model": "eva_clip_g",
    "img_size": 224,
    "vit_precision": "float32",
    "freeze_vit": True,
    "freeze_qformer": True,
    "adaptor_tuning": False,
    "freeze_proj_layer": False,
    "qformer_text_input": False,
    "num_query_token": 32,
    "llm_model": "",
    "load_basemodel": False,
    "base_model": "",
    "load_pretrained": True,
    "pretrained": "",
    "ref_pretrained": "",
    "low_memory": False,
    "avg_log_probs": True,
    "mix_ratio": 0.5,
    "prompt": "",
    "max_txt_len": 128,
    "max_output_txt_len": 256,
    "freeze_llm": True,
    "freeze_ln_vision": None,  # None: as freeze_vit; False restores the original, where ln_vision trains
    "vit_config": {},
    "qformer_config": {},
    "llm_config": {},
    "llm_weights": "",
    "llm_tokenizer": "",
    "llm_dtype": "float32",
    "lora_rank": 0,  # of adapters on the language model; 0: none
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "lora_targets": ["q_proj", "v_proj"],
    "bert_tokenizer": "bert-base-uncased",
    "amp": "",
    "init_seed": 0,
}
# Tokens of language model input whose activations are kept at a time, where only what stands before it trains.
CHUNK_TOKENS = {"cpu": 1024, "cuda": 4096}
VISION = ("visual_encoder", "ln_vision", "Qformer", "query_tokens")
PARTS = (*VISION, "llm_proj", "llm_model")


@dataclass(frozen=True)
class Generated:
    """What `generate_ids` returns: `ids` (N * num_captions, new tokens) int64, `scores` (beam search only) or None."""

    ids: Tensor
    scores: Tensor | None


@registry.register_model("blip2_emac")
class Blip2Emac(Blip2Base):
    """The policy; build it with `from_config` (or `lavis.models.load_model_and_preprocess`)."""

    PRETRAINED_MODEL_CONFIG_DICT = {
        "tiny": "configs/models/blip2/blip2_emac_tiny.yaml",
        "demo": "configs/models/blip2/blip2_emac_demo.yaml",
        "vicuna7b": "configs/models/blip2/blip2_emac_vicuna7b.yaml",
        "vicuna13b": "configs/models/blip2/blip2_emac_vicuna13b.yaml",
    }

    def __init__(
        self,
        *,
        visual_encoder: nn.Module,
        ln_vision: nn.Module,
        qformer: nn.Module,
        query_tokens: nn.Parameter,
        llm_model: PreTrainedModel,
        llm_tokenizer: LlmTokenizer,
        qformer_tokenizer: BertTokenizerFast | None = None,
        frozen: Sequence[str] = ("visual_encoder", "ln_vision", "Qformer", "query_tokens", "llm_model"),
        max_txt_len: int = 128,
        max_output_txt_len: int = 256,
        avg_log_probs: bool = True,
        mix_ratio: float = 0.5,
        prompt: str = "",
        amp: torch.dtype | None = None,
        low_memory: bool = False,
    ) -> None:
        """Put built parts together; `frozen` names those of `PARTS` that never train.

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
        self._base_hash = ""
        self._reference_hash = ""
        for part in self.frozen:
            getattr(self, part).requires_grad_(False)
        if low_memory:
            llm_model.gradient_checkpointing_enable({"use_reentrant": False})

    # ---- building -------------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, cfg: Mapping[str, object]) -> Self:
        """Build from the `model:` section (keys: `CONFIG_DEFAULTS`); the same config gives the same weights.

        Loads, in this order and as far as they are set: `llm_weights`, `base_model`, `pretrained`, `ref_pretrained`.
        Unknown keys and bad values are ValueErrors that name the key.
        """
        options = cls._checked(cfg)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options["init_seed"])
            model = cls._built(options)
        if options["llm_weights"]:
            model._load_llm(_package_path(options["llm_weights"]))
        if options["load_basemodel"]:
            model.load_checkpoint(_package_path(options["base_model"]))
        if options["load_pretrained"] and options["pretrained"]:
            model.load_checkpoint(options["pretrained"])
        if options["ref_pretrained"]:
            model.set_reference(weights.read_state(options["ref_pretrained"]), source=str(options["ref_pretrained"]))
        return model

    @staticmethod
    def _checked(cfg: Mapping[str, object]) -> dict[str, object]:
        """The config with defaults filled in; refuses keys that do not exist and values of another type."""
        given = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else dict(cfg)
        for key in given:
            if key not in CONFIG_DEFAULTS:
                near = difflib.get_close_matches(key, CONFIG_DEFAULTS, n=1)
                hint = f"; the nearest is model.{near[0]}" if near else ""
                raise ValueError(f"unknown key model.{key}{hint}")
            _check_type(key, given[key])
        options = {**CONFIG_DEFAULTS, **given}
        refused = (
            (
                options["load_basemodel"] and not options["base_model"],
                "model.base_model is empty: name InstructBLIP's weight file, or set model.load_basemodel=False",
            ),
            (
                options["adaptor_tuning"] and options["freeze_qformer"],
                "model.adaptor_tuning trains layers of the Q-Former: set model.freeze_qformer=False, or leave it out",
            ),
            (
                options["lora_rank"] and not options["freeze_llm"],
                "model.lora_rank trains adapters of a frozen language model: set model.freeze_llm=True",
            ),
        )
        for wrong, message in refused:
            if wrong:
                raise ValueError(message)
        return options

    @classmethod
    def _built(cls, options: Mapping) -> Self:
        tokenizer = load_llm_tokenizer(_package_path(options["llm_tokenizer"] or options["llm_model"]))
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
            _package_path(options["llm_model"]),
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
        )
        if options["lora_rank"]:  # last, so that the other weights begin as they do without adapters
            adapters.add_lora(llm, **{key: options[f"lora_{key}"] for key in ("rank", "alpha", "dropout", "targets")})
        return model

    def train(self, mode: bool = True) -> Self:
        """Training mode for what trains; frozen parts and the reference stay in eval mode."""
        super().train(mode)
        for part in self.frozen:
            if isinstance(module := getattr(self, part), nn.Module):
                module.eval()
        adapters.train_dropout(self.llm_model, mode)
        # A layer recomputes only while its own flag says training; what is inside it stays in eval mode.
        for module in self.llm_model.modules():
            if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
                module.training = mode
        if self.reference is not None:
            self.reference.eval()
        return self

    # ---- weights --------------------------------------------------------------------------------------------------

    def policy_state_dict(self) -> dict[str, Tensor]:
        """All weights of the policy under native names, without the reference; tied weights once."""
        tied = set(getattr(self.llm_model, "_tied_weights_keys", None) or ())
        skip = {f"llm_model.{name}" for name in tied} if self.llm_model.config.tie_word_embeddings else set()
        state = {adapters.plain_name(k): v for k, v in self.state_dict().items() if not k.startswith("reference.")}
        return {k: v for k, v in state.items() if k not in skip}

    def _put(self, state: Mapping[str, Tensor]) -> None:
        """Load weights under native names."""
        inner = {adapters.plain_name(name): name for name in self.state_dict()}
        self.load_state_dict({inner.get(name, name): value for name, value in state.items()}, strict=False)

    def load_checkpoint(self, url_or_filename: str) -> None:
        """Load a weight file or folder: LAVIS's, the hub's or native names; parts that it lacks keep their weights.

        Keys with `ref_` in front (EMMA's whole checkpoints) become the reference.
        """
        found = weights.read_state(url_or_filename)
        source = f"{url_or_filename} ({weights.format_of(found)} names)"
        state = weights.to_native(found)
        policy, reference = weights.split_reference(state)
        own = self.policy_state_dict()
        present = {_part_of(key) for key in policy}
        policy = {k: v for k, v in policy.items() if k in own or not self._is_text_branch(k)}
        policy = self._without_spare_words(policy)
        adapted = any(map(adapters.is_adapter, policy))
        if adapted and not any(map(adapters.is_adapter, own)):
            raise ValueError(f"{source} has LoRA adapters: set model.lora_rank as it was when they were trained")
        expected = self.trainable_state_dict()
        if policy.keys() != expected.keys():
            own = {k: v for k, v in own.items() if adapted or not adapters.is_adapter(k)}
            expected = {k: v for k, v in own.items() if _part_of(k) in present}
        if complaint := weights.mismatch(expected, policy, source):
            raise ValueError(complaint)
        weights.require_finite(policy, source)
        self._put(policy)
        self._base_hash = self._reference_hash = ""
        if reference:
            self.set_reference(state, source=source)

    def _without_spare_words(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state with as many words as the language model has here.

        The hub's InstructBLIP has more, up to the next 64: one that marks image tokens, and padding. None of this
        tokenizer's.
        """
        words = self.llm_model.config.vocab_size

        def cut(name: str, value: Tensor) -> Tensor:
            table = name.startswith("llm_model.") and name.endswith(("embed_tokens.weight", "lm_head.weight"))
            return value[:words] if table and words < len(value) <= words + 64 else value

        return {name: cut(name, value) for name, value in state.items()}

    def _is_text_branch(self, key: str) -> bool:
        """Whether `key` belongs to the Q-Former's text branch, which a model without Q-Former text does not have."""
        if self.qformer_tokenizer is not None or not key.startswith("Qformer."):
            return False
        return any(s in key for s in (".word_embeddings.", ".position_embeddings.", ".intermediate.")) or (
            ".output." in key and "attention.output." not in key
        )

    def _load_llm(self, path: str) -> None:
        """Load the language model alone from a file with plain Transformers names."""
        state = {f"llm_model.{k}": v for k, v in weights.read_state(path).items()}
        state = weights.to_native(state)
        own = {k: v for k, v in self.policy_state_dict().items() if _part_of(k) == "llm_model"}
        own = {k: v for k, v in own.items() if not adapters.is_adapter(k)}
        tied = "llm_model.lm_head.weight"
        if tied not in own:
            state.pop(tied, None)
        if complaint := weights.mismatch(own, state, path):
            raise ValueError(complaint)
        weights.require_finite(state, path)
        self._put(state)

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The weights that train, under native names: what a checkpoint stores."""
        names = {adapters.plain_name(name) for name, value in self.named_parameters() if value.requires_grad}
        return {k: v for k, v in self.policy_state_dict().items() if k in names}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave; every key must be there and fit, else ValueError names both sides."""
        if complaint := weights.mismatch(self.trainable_state_dict(), state, "the checkpoint's trainable state"):
            raise ValueError(complaint)
        weights.require_finite(state, "the checkpoint's trainable state")
        self._put(state)

    def base_hash(self) -> str:
        """Hash (64 hex digits) of the frozen weights and of the names and shapes of those that train.

        A checkpoint belongs to the base it was trained on. Adapters do not count: the base is the same with and without
        them. Computed once: frozen weights do not change.
        """
        if not self._base_hash:
            digest = hashlib.sha256()
            trainable = self.trainable_state_dict().keys()
            for name, value in sorted(self.policy_state_dict().items()):
                if adapters.is_adapter(name):
                    continue
                digest.update(f"{name} {tuple(value.shape)}\n".encode())
                if name not in trainable:
                    digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
            self._base_hash = digest.hexdigest()
        return self._base_hash

    def set_reference(self, state: Mapping[str, Tensor] | None = None, source: str = "the reference state") -> None:
        """Set DPO's reference policy; `None` takes the policy as it is now.

        `state` has native or LAVIS names and must cover all that trains (but for adapters: without any, the reference
        has none). The reference holds copies of the parts that train or differ, and in them of the weights that do; it
        shares the others. Where names have `ref_` in front (EMMA's whole checkpoints), only those count, and parts they
        lack are taken from the policy as it is now.
        """
        native = weights.to_native(self.trainable_state_dict() if state is None else state)
        policy, reference = weights.split_reference(native)
        own = self.policy_state_dict()
        new = {k: v for k, v in (reference or policy).items() if k in own or not self._is_text_branch(k)}
        if not any(map(adapters.is_adapter, new)):
            new |= {k: torch.zeros_like(v) for k, v in own.items() if adapters.is_adapter(k)}
        lacking = [] if reference else [k for k in self.trainable_state_dict() if k not in new]
        complaint = weights.mismatch({k: own[k] for k in own if k in new or k in lacking}, new, source)
        if complaint:
            raise ValueError(complaint)
        weights.require_finite(new, source)
        different = {k: v for k, v in new.items() if not torch.equal(v.to(own[k]), own[k])}
        parts = {_part_of(k) for k in (*different, *self.trainable_state_dict())}
        self.reference = self._frozen_copies(sorted(parts), different)
        self._reference_hash = ""
        inner = {adapters.plain_name(name): name for name in self.reference.state_dict()}
        self.reference.load_state_dict({inner[k]: v for k, v in different.items()}, strict=False)

    def _frozen_copies(self, parts: Sequence[str], different: Collection[str]) -> nn.Module:
        """A holder of frozen copies of `parts`, which share the weights that neither train nor are `different`."""
        shared = {
            id(parameter): parameter
            for name, parameter in self.named_parameters()
            if not parameter.requires_grad and adapters.plain_name(name) not in different
        }
        holder = nn.Module()
        for part in parts:
            setattr(holder, part, copy.deepcopy(getattr(self, part), shared))
        return holder.requires_grad_(False).eval()

    # ---- from image and text to the language model's input ----------------------------------------------------------

    def _part(self, name: str, reference: bool) -> nn.Module | nn.Parameter:
        if reference and hasattr(self.reference, name):
            return getattr(self.reference, name)
        return getattr(self, name)

    def encode_image(self, image: Tensor, *, reference: bool = False) -> Tensor:
        """Features of `image` (N, 3, S, S) after `ln_vision`: (N, patches + 1, vision width)."""
        encoder, ln_vision = self._part("visual_encoder", reference), self._part("ln_vision", reference)
        size = encoder.config.image_size
        if image.dim() != 4 or image.shape[1:] != (3, size, size) or not image.is_floating_point():
            raise ValueError(
                f"image: expected float (N, 3, {size}, {size}), got {image.dtype} {tuple(image.shape)}; "
                "use vis_processors['eval']"
            )
        return ln_vision(encoder(image.to(self.device, encoder.dtype)).last_hidden_state)

    def encode_queries(self, image: Tensor, texts: Sequence[str], *, reference: bool = False) -> Tensor:
        """The Q-Former's output for images (N, 3, S, S) or videos (N, frames, 3, S, S): (N, Q, Q-Former width).

        `texts` is what the Q-Former reads beside the image, where it reads text. A video's frames follow one another
        along Q, as in the original's `generate`.
        """
        frames = 1
        if image.dim() == 5:
            frames = image.shape[1]
            image = image.flatten(0, 1)
            texts = [text for text in texts for _ in range(frames)]
        features = self.encode_image(image, reference=reference)
        qformer, queries = self._part("Qformer", reference), self._part("query_tokens", reference)
        queries = queries.expand(len(features), -1, -1)
        text: dict[str, Tensor | None] = {"input_ids": None}
        if self.qformer_tokenizer is not None:
            tokens = self.qformer_text_tokens(texts).to(features.device)
            seen = torch.ones(queries.shape[:2], dtype=torch.long, device=features.device)
            text = {"input_ids": tokens.input_ids, "attention_mask": torch.cat([seen, tokens.attention_mask], dim=1)}
        output = qformer(query_embeds=queries, encoder_hidden_states=features.to(queries.dtype), **text)
        hidden = output.last_hidden_state[:, : queries.shape[1]]
        return hidden.reshape(len(hidden) // frames, frames * hidden.shape[1], hidden.shape[2])

    def qformer_text_tokens(self, texts: Sequence[str]) -> BatchEncoding:
        """BERT `input_ids` and `attention_mask` (N, L) of what the Q-Former reads, cut on the left to `max_txt_len`."""
        return self.qformer_tokenizer(
            list(texts), padding="longest", truncation=True, max_length=self.max_txt_len, return_tensors="pt"
        )

    def _image_tokens(self, samples: Mapping[str, object], texts: Sequence[str], *, reference: bool = False) -> Tensor:
        """The images as the language model sees them: (N, Q, H)."""
        own_vision = reference and any(hasattr(self.reference, part) for part in VISION)
        if "query_output" in samples and not own_vision:
            queries = self._kept_queries(samples["query_output"])
        elif "image" in samples:
            queries = self.encode_queries(samples["image"], texts, reference=reference)
        else:
            raise ValueError("the reference policy has a vision side of its own: give samples['image'] too")
        return self._part("llm_proj", reference)(queries)

    def _kept_queries(self, queries: Tensor) -> Tensor:
        """`encode_queries`' result as it was stored with a sample, checked."""
        if trains := [part for part in VISION if part not in self.frozen]:
            raise ValueError(f"samples['query_output'] is stale where {trains[0]} trains: give samples['image']")
        width = self.llm_proj.in_features
        if queries.dim() != 3 or queries.shape[2] != width:
            raise ValueError(f"query_output: expected (N, queries, {width}), got {tuple(queries.shape)}")
        return queries.to(self.device)

    def training_rows(self, prompts: Sequence[str], outputs: Sequence[str]) -> Rows:
        """What the language model reads behind the image tokens in training, cut and padded, with labels."""
        inputs = encode_prompts(self.llm_tokenizer, prompts, self.max_txt_len)
        targets = [encode_output(self.llm_tokenizer, text, self.max_output_txt_len) for text in outputs]
        return training_rows(inputs, targets, self.llm_tokenizer.pad_id)

    def _require_room(self, image_tokens: Tensor, prompts: Sequence[int], answer: int) -> None:
        """ValueError where image tokens, a prompt (`prompts`: tokens of each) and `answer` tokens need more positions
        than the language model has.
        """
        limit = getattr(self.llm_model.config, "max_position_embeddings", None)
        longest = max(range(len(prompts)), key=prompts.__getitem__)
        need = image_tokens.shape[1] + prompts[longest] + answer
        if limit is not None and need > limit:
            raise ValueError(
                f"prompt {longest} has {prompts[longest]} tokens; with {image_tokens.shape[1]} image tokens and "
                f"{answer} of the answer that is {need}, and the language model has {limit} positions: shorten the "
                "prompt or max_length"
            )

    def _token_logps(self, image_tokens: Tensor, rows: Rows, *, reference: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability of every labelled token: (M,) float32, and the row each belongs to: (M,).

        The logits of all other positions are never computed. Pads stand on the right, where a causal model's real
        tokens do not see them, so no mask is needed.
        """
        self._require_room(image_tokens, rows.mask.sum(1).tolist(), 0)
        llm = self._part("llm_model", reference)
        ids, labels = rows.ids.to(self.device), rows.labels.to(self.device)
        embeds = llm.get_input_embeddings()(ids)
        embeds = torch.cat([image_tokens.to(embeds.dtype), embeds], dim=1)
        hidden = llm.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
        row, column = torch.nonzero(labels != IGNORE, as_tuple=True)
        before = hidden[row, image_tokens.shape[1] + column - 1]  # a token is predicted one position earlier
        logits = llm.get_output_embeddings()(before).float()
        return -F.cross_entropy(logits, labels[row, column], reduction="none"), row

    # ---- training ---------------------------------------------------------------------------------------------------

    def forward(self, samples: Mapping[str, object]) -> dict[str, Tensor]:
        """Behavioural cloning: `{"loss"}`, the mean over the batch's output tokens of their negative log-probability.

        `samples`: `image` (N, 3, S, S), `text_input` and `text_output`, N strings each. Where the vision side is
        frozen, `query_output` (what `encode_queries` gave) may stand for `image`.
        """
        prompts, outputs = self._batch(samples, "text_input", "text_output")
        with self.maybe_autocast():
            image_tokens = self._image_tokens(samples, prompts)
            if not self._only_input_trains(image_tokens):
                logps, _ = self._token_logps(image_tokens, self.training_rows(prompts, outputs))
                return {"loss": -logps.mean()}
            answers = self._answers(zip(outputs, strict=True))
            count = sum(len(answer) for (answer,) in answers)
            sums, anchor = self._logps_by_rows(image_tokens, prompts, answers, lambda sums, rows: -sums.sum() / count)
        return {"loss": -sums.sum() / count + anchor}

    def _only_input_trains(self, image_tokens: Tensor) -> bool:
        """Whether the language model's activations serve only the gradient of the image tokens."""
        return (
            torch.is_grad_enabled()
            and image_tokens.requires_grad
            and llama.supports(self.llm_model)
            and not any(parameter.requires_grad for parameter in self.llm_model.parameters())
        )

    def _logps_by_rows(
        self,
        image_tokens: Tensor,
        prompts: Sequence[str],
        answers: Sequence[Sequence[list[int]]],
        loss_of: Callable[[Tensor, list[int]], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Summed log-probability of each answer, (N, answers), and the gradient's anchor (`values_by_rows`)."""
        prompt_ids = encode_prompts(self.llm_tokenizer, prompts, self.max_txt_len)
        width = len(answers[0])
        self._require_room(image_tokens, [len(i) for i in prompt_ids], max(len(a) for group in answers for a in group))

        def sums_of(tokens: Tensor, rows: list[int]) -> Tensor:
            logps, answer = answer_tree.token_logps(
                self.llm_model, tokens, [prompt_ids[i] for i in rows], [answers[i] for i in rows]
            )
            return logps.new_zeros(len(rows) * width).index_add(0, answer, logps).view(len(rows), width)

        lengths = [
            image_tokens.shape[1] + len(prompt) + sum(len(answer) for answer in group)
            for prompt, group in zip(prompt_ids, answers, strict=True)
        ]
        return values_by_rows(
            sums_of, loss_of, image_tokens, chunked(lengths, CHUNK_TOKENS.get(self.device.type, CHUNK_TOKENS["cuda"]))
        )

    def sequence_logps(self, samples: Mapping[str, object], *keys: str, reference: bool = False) -> tuple[Tensor, ...]:
        """Log-probability of each answer in `samples[key]`, one tensor (N,) for every key.

        Mean over the answer's tokens where `avg_log_probs`, else their sum; `</s>` counts. `reference` asks the
        reference policy (call that under `no_grad`).
        """
        prompts, *outputs = self._batch(samples, "text_input", *keys)
        with self.maybe_autocast():
            image_tokens = self._image_tokens(samples, prompts, reference=reference)
            return self._answer_logps(image_tokens, prompts, outputs, reference=reference).unbind(1)

    def _answer_logps(
        self, image_tokens: Tensor, prompts: Sequence[str], outputs: Sequence[Sequence[str]], *, reference: bool = False
    ) -> Tensor:
        """As `sequence_logps`, from image tokens: (N, len(outputs))."""
        if len(outputs) == 1:  # plain rows, whose causal mask attention kernels know
            rows = self.training_rows(prompts, outputs[0])
            logps, answer = self._token_logps(image_tokens, rows, reference=reference)
        else:
            logps, answer = answer_tree.token_logps(
                self._part("llm_model", reference),
                image_tokens,
                encode_prompts(self.llm_tokenizer, prompts, self.max_txt_len),
                self._answers(zip(*outputs, strict=True)),
            )
        sums = logps.new_zeros(len(prompts) * len(outputs)).index_add(0, answer, logps)
        if self.avg_log_probs:
            sums = sums / torch.bincount(answer, minlength=len(sums))
        return sums.view(len(prompts), len(outputs))

    def _answers(self, groups: Iterable[Sequence[str]]) -> list[list[list[int]]]:
        return [
            [encode_output(self.llm_tokenizer, text, self.max_output_txt_len) for text in group] for group in groups
        ]

    @torch.no_grad()
    def reference_logps(self, samples: Mapping[str, object]) -> tuple[Tensor, Tensor]:
        """The reference policy's (chosen, rejected) log-probabilities, (N,) each: constants of a transition."""
        self._require_reference()
        return self.sequence_logps(samples, "text_output_pos", "text_output_neg", reference=True)

    def _require_reference(self) -> nn.Module:
        if self.reference is None:
            raise ValueError(
                "DPO needs a reference policy: set model.ref_pretrained to the phase-1 checkpoint, "
                "or call set_reference()"
            )
        return self.reference

    def reference_hash(self) -> str:
        """What `reference_logps` depends on beside the samples: equal as long as stored log-probabilities hold.

        The frozen base and the reference's own weights (hashed once), and how texts are cut and averaged.
        """
        if not self._reference_hash:
            digest = hashlib.sha256(self.base_hash().encode())
            own = {id(parameter) for part in PARTS for parameter in _parameters(getattr(self, part))}
            for name, value in self._require_reference().named_parameters():
                if id(value) not in own:
                    digest.update(f"{name} {tuple(value.shape)}\n".encode())
                    digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
            self._reference_hash = digest.hexdigest()
        return f"{self._reference_hash} {self.max_txt_len} {self.max_output_txt_len} {self.avg_log_probs}"

    def dpo_parts(self, samples: Mapping[str, object]) -> DpoParts:
        """All parts of the DPO loss for `samples` (as `dpo_forward`)."""
        prompts, *outputs = self._batch(samples, "text_input", "text_output_pos", "text_output_neg")
        if "ref_logps_pos" in samples and "ref_logps_neg" in samples:
            known = torch.stack([samples["ref_logps_pos"], samples["ref_logps_neg"]], dim=1).float().to(self.device)
        else:
            samples = self.encoded_once(samples)
            known = torch.stack(self.reference_logps(samples), dim=1)

        def parts(logps: Tensor, known: Tensor) -> DpoParts:
            return dpo_loss(*logps.unbind(1), *known.unbind(1), beta=BETA, mix_ratio=self.mix_ratio)

        with self.maybe_autocast():
            image_tokens = self._image_tokens(samples, prompts)
            if not self._only_input_trains(image_tokens):
                return parts(self._answer_logps(image_tokens, prompts, outputs), known)
            answers = self._answers(zip(*outputs, strict=True))
            counts = known.new_ones(known.shape)
            if self.avg_log_probs:
                counts = known.new_tensor([[len(answer) for answer in group] for group in answers])
            logps, anchor = self._logps_by_rows(
                image_tokens,
                prompts,
                answers,
                lambda sums, rows: parts(sums / counts[rows], known[rows]).loss * (len(rows) / len(prompts)),
            )
        whole = parts(logps / counts, known)
        return whole._replace(loss=whole.loss + anchor)

    @torch.no_grad()
    def encoded_once(self, samples: Mapping[str, object]) -> Mapping[str, object]:
        """The samples of `dpo_forward` with `query_output`, where policy and reference see the images alike."""
        alike = all(part in self.frozen and not hasattr(self._require_reference(), part) for part in VISION)
        if not alike or "image" not in samples or "query_output" in samples:
            return samples
        with self.maybe_autocast():
            return {**samples, "query_output": self.encode_queries(samples["image"], samples["text_input"])}

    def dpo_forward(self, samples: Mapping[str, object]) -> dict[str, Tensor]:
        """DPO: `{"loss", "chosen_reward", "rejected_reward", "chosen_entropy"}`, scalars.

        `samples`: `image`, `text_input`, `text_output_pos` (the expert's answer), `text_output_neg` (the policy's);
        optionally `ref_logps_pos` and `ref_logps_neg` (N,), then the reference is not asked.
        """
        return self.dpo_parts(samples)._asdict()

    def _batch(self, samples: Mapping[str, object], *keys: str) -> tuple[Sequence[str], ...]:
        """The texts under `keys`, checked against one another and the images."""
        count = _count(samples)
        for key in keys:
            if key not in samples:
                raise ValueError(f"samples lack {key!r}; they have {', '.join(samples)}")
            if isinstance(samples[key], str) or len(samples[key]) != count:
                raise ValueError(f"samples[{key!r}]: expected a list of {count} strings, one for each image")
        return tuple(samples[key] for key in keys)

    # ---- acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        samples: Mapping[str, object],
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

    @torch.no_grad()
    def generate_ids(
        self,
        samples: Mapping[str, object],
        *,
        use_nucleus_sampling: bool,
        num_beams: int,
        max_length: int,
        min_length: int,
        top_p: float,
        repetition_penalty: float,
        length_penalty: float,
        num_captions: int,
        temperature: float,
    ) -> Generated:
        """As `generate`, before decoding: new token ids with pads (id 0) after `</s>`, and beam scores."""
        if max_length < 2:
            raise ValueError(f"max_length={max_length}: at least 2 (the original counts a BOS), for one new token")
        max_new, min_new = max_length - 1, max(min_length - 1, 0)
        with self.maybe_autocast():
            embeds, mask = self.prompt_embeds(samples, room=max_new)
            eos_id = self.llm_tokenizer.eos_id
            if num_beams == num_captions == repetition_penalty == 1 and not use_nucleus_sampling:
                ids = greedy(self.llm_model, embeds, mask, max_new=max_new, min_new=min_new, eos_id=eos_id, pad_id=0)
                return Generated(ids, None)
            if num_beams > 1 and not use_nucleus_sampling:
                settings = BeamSettings(
                    beams=num_beams,
                    max_new=max_new,
                    min_new=min_new,
                    repetition_penalty=float(repetition_penalty),
                    length_penalty=float(length_penalty),
                    returned=num_captions,
                    eos_id=eos_id,
                    pad_id=0,
                )
                return Generated(*beam_search(self.llm_model, embeds, mask, settings))
            sampling = {"top_p": top_p, "temperature": float(temperature)} if use_nucleus_sampling else {}
            output = self.llm_model.generate(
                inputs_embeds=embeds,
                attention_mask=mask,
                do_sample=use_nucleus_sampling,
                num_beams=num_beams,
                max_new_tokens=max_new,
                min_new_tokens=min_new,
                repetition_penalty=float(repetition_penalty),
                length_penalty=float(length_penalty),
                num_return_sequences=num_captions,
                eos_token_id=eos_id,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
                **sampling,
            )
        # Today's beam search fills finished rows with eos, the original with pads.
        return Generated(pads_after(output.sequences, eos_id, pad_id=0), getattr(output, "sequences_scores", None))

    def _prompts(self, samples: Mapping[str, object]) -> list[str]:
        prompts = samples.get("prompt", self.prompt)
        count = _count(samples)
        if isinstance(prompts, str):
            return [prompts] * count
        if len(prompts) != count:
            raise ValueError(f"samples['prompt'] has {len(prompts)} prompts for {count} images")
        return list(prompts)

    def prompt_embeds(self, samples: Mapping[str, object], room: int = 0) -> tuple[Tensor, Tensor]:
        """Input of generation, `[image tokens][left pads][prompt]`: embeddings (N, Q + L, H) and mask (N, Q + L).

        ValueError where `room` more tokens would exceed the language model's positions.
        """
        prompts = self._prompts(samples)
        image_tokens = self._image_tokens(samples, prompts)
        ids = encode_prompts(self.llm_tokenizer, prompts)
        self._require_room(image_tokens, [len(i) for i in ids], room)
        rows = prompt_rows(ids, self.llm_tokenizer.pad_id)
        text = self.llm_model.get_input_embeddings()(rows.ids.to(self.device))
        mask = torch.cat([torch.ones(image_tokens.shape[:2], dtype=torch.long), rows.mask], dim=1)
        return torch.cat([image_tokens.to(text.dtype), text], dim=1), mask.to(self.device)

    @torch.no_grad()
    def score(self, samples: Mapping[str, object], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Sum of log-probabilities of each candidate answer and its `</s>`.

        `samples` {"image", "prompt"} of N; `candidates[n]` are the answers to weigh for sample n, any number of them.
        Each prompt is computed once, and so is what its candidates share.
        """
        prompts = self._prompts(samples)
        if len(candidates) != len(prompts):
            raise ValueError(f"score: {len(candidates)} lists of candidates for {len(prompts)} samples")
        if not any(candidates):
            return [[] for _ in candidates]
        ids, answers = encode_prompts(self.llm_tokenizer, prompts), self._answers(candidates)
        with self.maybe_autocast():
            image_tokens = self._image_tokens(samples, prompts)
            self._require_room(image_tokens, [len(i) for i in ids], max(len(a) for group in answers for a in group))
            logps, answer = answer_tree.token_logps(self.llm_model, image_tokens, ids, answers, acting=True)
        counts = [len(group) for group in candidates]
        sums = logps.new_zeros(sum(counts)).index_add(0, answer, logps)
        return [group.tolist() for group in sums.split(counts)]


def model_section(name: str) -> dict[str, object]:
    """The whole `model:` section of a yaml file (its keys over its type's), or of the model type `name`.

    FileNotFoundError or ValueError where there is none.
    """
    own = {}
    if Path(name).suffix in (".yaml", ".yml"):
        own = load_yaml(name).get("model")
        if not own:
            raise ValueError(f"{name} has no section model:")
        name = own.get("model_type") or "tiny"
    base = OmegaConf.load(Blip2Emac.default_config_path(name)).model
    return OmegaConf.to_container(OmegaConf.merge(base, own), resolve=True)


def frozen_parts(options: Mapping) -> list[str]:
    """Names of the parts that the config's `freeze_*` keys freeze."""
    freeze_ln = options["freeze_vit"] if options["freeze_ln_vision"] is None else options["freeze_ln_vision"]
    flags = {
        "visual_encoder": options["freeze_vit"],
        "ln_vision": freeze_ln,
        "Qformer": options["freeze_qformer"],
        "query_tokens": options["freeze_qformer"],
        "llm_proj": options["freeze_proj_layer"],
        "llm_model": options["freeze_llm"],
    }
    return [part for part in PARTS if flags[part]]


def _count(samples: Mapping[str, object]) -> int:
    """How many images the samples hold, at least one."""
    key = "query_output" if "query_output" in samples else "image"
    if key not in samples:
        raise ValueError(f"samples lack 'image'; they have {', '.join(samples) or 'nothing'}")
    if len(samples[key]) == 0:
        raise ValueError(f"samples hold no sample: {key} is empty")
    return len(samples[key])


def _check_type(key: str, value: object) -> None:
    """ValueError where `model.<key>` cannot be `value`, by the default's type; None leaves a text or section out."""
    default = CONFIG_DEFAULTS[key]
    if isinstance(default, bool) or key == "freeze_ln_vision":
        fits, wanted = isinstance(value, bool) or value is default, "true or false"
    elif isinstance(default, int | float):
        least = 1 if key in ("img_size", "num_query_token", "max_txt_len", "max_output_txt_len") else 0
        numbers = int if isinstance(default, int) else (int, float)
        fits = isinstance(value, numbers) and not isinstance(value, bool) and value >= least
        wanted = f"a {'whole ' if isinstance(default, int) else ''}number of at least {least}"
    elif isinstance(default, str):
        fits, wanted = value is None or isinstance(value, str | Path), "a text (put it in quotes)"
    else:
        kind, wanted = (Mapping, "a section") if isinstance(default, dict) else (Sequence, "a list")
        fits = value is None or (isinstance(value, kind) and not isinstance(value, str))
    if not fits:
        raise ValueError(f"model.{key}: {value!r} is not {wanted}")


def _parameters(part: nn.Module | nn.Parameter) -> Iterable[nn.Parameter]:
    return part.parameters() if isinstance(part, nn.Module) else [part]


def _part_of(name: str) -> str:
    return name.split(".", 1)[0]


def _package_path(name: object) -> str:
    """A path as given, or one of the package's own folders (`tiny` -> lavis/models/tiny)."""
    own = LIBRARY_ROOT / "models" / str(name)
    return str(own) if name and not Path(str(name)).exists() and own.exists() else str(name)
