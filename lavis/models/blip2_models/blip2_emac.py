"""Blip2Emac: the vision-language policy of EMAC+ (image, prompt) -> action text.

    image -> visual_encoder -> ln_vision -> Qformer(query_tokens) -> llm_proj -> [image tokens][prompt][answer] -> LLM

The model is a `Student` (`../student.py`): `act`, `answer_logps` and `losses` are what the rest of the project uses.
LAVIS's calls stand beside them: `forward` (behavioural cloning), `dpo_forward` (DPO against a frozen reference policy)
and `generate`. Which parts train is set in the config (`freeze_*`); of the real sizes only `llm_proj` trains.

It has a vision side, a language backend and checkpoint functions, each in a module of its own:

    emac_config.py       every key of the config's `model:` section, its default and its checks
    blip2.py             the parts, built from config: vision encoder, Q-Former, language model, tokenizers
    vision.py            from an image to image tokens
    text.py              from a text to token ids
    language.py          log-probabilities of given answers, and new answers, by our kernels or by Transformers
    emac_weights.py      checkpoints in and out, hashes, DPO's reference policy
    ../losses.py         the two objectives, for any student
    ../fast_llm          the language model's kernels, each tested against Transformers' own

Shapes: N samples, Q query (image) tokens, L text tokens, H hidden size of the language model, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import BertTokenizer, InstructBlipQFormerModel, PreTrainedModel

from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.models.blip2_models import adapters, blip2, emac_weights, language, weights
from lavis.models.blip2_models.emac_config import (
    KEYS_OF_PARTS,
    MODEL_TYPES,
    VISION,
    check_files,
    checked_options,
    key_named,
    lora_options,
    package_path,
    required_parts,
)
from lavis.models.blip2_models.text import LlmTokenizer, encode_output, encode_prompts, prompt_rows, written
from lavis.models.blip2_models.vision import VisionSide
from lavis.models.student import Decoding, Question, RowLoss, Samples, questions_of
from lavis.models.student_model import StudentModel

if TYPE_CHECKING:
    from typing_extensions import Self


@registry.register_model("blip2_emac")
class Blip2Emac(StudentModel):
    """The policy; build it with `from_config` (or `lavis.models.load_model_and_preprocess`)."""

    PRETRAINED_MODEL_CONFIG_DICT = MODEL_TYPES

    # ---- assembly ---------------------------------------------------------------------------------------------------

    def __init__(
        self,
        *,
        visual_encoder: blip2.VisionEncoder,
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
        kept_prompts_mib: int = 0,
    ) -> None:
        """Put built parts together; `frozen` names those of `emac_config.PARTS` that never train.

        With a `qformer_tokenizer` the Q-Former reads the prompt too (`qformer_text_input`). `low_memory` recomputes
        the language model's activations in the backward pass (gradient checkpointing) instead of keeping them.
        """
        super().__init__()
        # The parts have LAVIS's names, which are the first words of the weights' names in every checkpoint.
        self.visual_encoder = visual_encoder
        self.ln_vision = ln_vision
        self.Qformer = qformer
        self.query_tokens = query_tokens  # (1, Q, width of the Q-Former)
        self.llm_model = llm_model
        words: Any = llm_model.get_input_embeddings()
        self.llm_proj = nn.Linear(qformer.config.hidden_size, words.embedding_dim)
        # DPO's reference policy: those parts that differ from the policy's; see `set_reference`.
        self.reference: nn.Module | None = None
        self._as_reference = False  # whether the calls speak for it at the moment, see `as_reference`
        self.llm_tokenizer = llm_tokenizer
        self.qformer_tokenizer = qformer_tokenizer
        self.frozen = tuple(frozen)
        self.max_txt_len = max_txt_len
        self.max_output_txt_len = max_output_txt_len
        self.avg_log_probs = avg_log_probs
        self.mix_ratio = mix_ratio
        self.prompt = prompt  # of samples that bring none
        self.amp = amp
        self.cut_prompts = cut_prompts  # whether acting cuts long prompts as training does
        self._acting = adapters.ActingModel(kept_prompts_mib)
        self.sources: dict[str, str] = {}  # part: the file, folder or hub id that brought all its weights
        self.required_parts: tuple[str, ...] = ()  # by the config: must be in `sources` before the model trains or acts
        self._frozen_hash = self._reference_hash = ""  # computed when asked for, anew after weights were loaded
        for part in self.frozen:
            getattr(self, part).requires_grad_(False)
        if low_memory:
            language.recompute(llm_model)

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> Self:
        """Build from the `model:` section (keys: `emac_config.CONFIG_DEFAULTS`); the same config, the same weights.

        Loads, in this order and as far as they are set: `llm_weights`, `base_model`, `vit_weights` if that brought no
        vision encoder, `pretrained`, `ref_pretrained`. All are looked at before anything is built (`check_files`).
        Raises ConfigError, which names the key, for unknown keys and bad values; MissingFileError and WeightsError for
        files. `sources` then says what came from where; `require_sources` refuses random weights.
        """
        options = checked_options(cfg)
        check_files(options)
        with torch.random.fork_rng(devices=[]):  # the CPU's generator: weights are made on the CPU
            torch.manual_seed(options["init_seed"])
            model = cls(**blip2.parts(options))
            if options["lora_rank"]:  # last, so that the other weights begin as they do without adapters
                adapters.add_lora(model.llm_model, **lora_options(options))
        model.required_parts = tuple(required_parts(options))
        if not options["llm_config"] and not options["llm_weights"]:
            model.sources["llm_model"] = str(options["llm_model"])
        # In this order: each file may bring what an earlier one brought, too, and the later one counts.
        for key, wanted, load in (
            ("llm_weights", True, emac_weights.load_llm),
            ("base_model", options["load_basemodel"], emac_weights.base_loader(options)),
            ("vit_weights", True, emac_weights.load_vision),
            ("pretrained", options["load_pretrained"], emac_weights.load_checkpoint),
        ):
            if options[key] and wanted and not (key == "vit_weights" and "visual_encoder" in model.sources):
                with key_named(key, options):
                    load(model, package_path(options[key]))
        if options["ref_pretrained"]:  # last: it shares what it has like the policy's loaded weights
            with key_named("ref_pretrained", options):
                path = package_path(options["ref_pretrained"])
                model.set_reference(weights.read_state(path), source=path)
        return model

    def train(self, mode: bool = True) -> Self:
        """Training mode for what trains; frozen parts and the reference stay in evaluation mode."""
        super().train(mode)
        self._acting.drop(if_training=mode)
        for part in self.frozen:
            if isinstance(module := getattr(self, part), nn.Module):
                module.eval()
        adapters.train_dropout(self.llm_model, mode)
        language.train_recomputing(self.llm_model, mode)
        if self.reference is not None:
            self.reference.eval()
        return self

    def require_sources(self) -> None:
        """ConfigError if a part has random weights that must come from a file (`emac_config.required_parts`)."""
        if lacking := [part for part in self.required_parts if part not in self.sources]:
            told = "; ".join(f"{part} (set {KEYS_OF_PARTS[part]})" for part in lacking)
            raise ConfigError(
                f"no file brought the weights of {told}: the model does not train or act with random weights there, "
                f"unless model.allow_random=[{','.join(lacking)}]"
            )

    # ---- from questions to what the language model reads ----------------------------------------------------------

    def part(self, name: str) -> Any:
        """The policy's part `name`; in the context `as_reference` the reference policy's, if that has its own."""
        owner = self.reference if self._as_reference and hasattr(self.reference, name) else self
        return getattr(owner, name)

    @property
    def vision(self) -> VisionSide:
        """The vision side of the policy that speaks, see `part`."""
        return VisionSide(
            visual_encoder=self.part("visual_encoder"),
            ln_vision=self.part("ln_vision"),
            qformer=self.part("Qformer"),
            query_tokens=self.part("query_tokens"),
            llm_proj=self.part("llm_proj"),
            tokenizer=self.qformer_tokenizer,
            max_txt_len=self.max_txt_len,
        )

    def image_tokens(self, questions: Sequence[Question]) -> Tensor:
        """The questions' images as the language model reads them: (N, Q, H).

        The Q-Former's outputs may come with the questions (`Question.encoded`), unless the policy that speaks has a
        vision side of its own.
        """
        self.require_sources()
        vision = self.vision
        own = self._as_reference and any(hasattr(self.reference, part) for part in VISION)
        if questions[0].encoded is None or own:
            if not questions[0].images:
                raise ValueError(
                    "the reference policy has its own vision encoder or Q-Former: give samples['image'] too"
                )
            return vision.tokens_of([q.images[-1] for q in questions], [q.prompt for q in questions])
        if trains := [part for part in VISION if part not in self.frozen]:
            raise ValueError(f"samples['query_output'] is stale because {trains[0]} trains: give samples['image']")
        queries = torch.stack([question.encoded for question in questions])  # (N, Q, width of the Q-Former)
        if queries.dim() != 3 or queries.shape[2] != (width := self.llm_proj.in_features):
            raise ValueError(f"query_output: expected (N, queries, {width}), got {tuple(queries.shape)}")
        return vision.llm_proj(queries.to(self.device))

    @torch.no_grad()
    def encoded(self, questions: Sequence[Question]) -> Sequence[Question]:
        """The questions with the Q-Former's outputs, if policy and reference encode images alike."""
        alike = all(part in self.frozen and not hasattr(self.require_reference(), part) for part in VISION)
        if not alike or questions[0].encoded is not None:
            return questions
        images = torch.stack([question.images[-1] for question in questions])
        with self.maybe_autocast():
            queries = self.vision.encode_queries(images, [question.prompt for question in questions])
        return [replace(question, encoded=row) for question, row in zip(questions, queries, strict=True)]

    def prompt_ids(self, prompts: Sequence[str], *, acting: bool = False) -> list[list[int]]:
        """Token ids of each prompt as the language model reads it: BOS, then at most the last `max_txt_len - 1` ids.

        Training and acting both come here. Without `cut_prompts` acting never cuts: the original's `generate`.
        """
        limit = self.max_txt_len if self.cut_prompts or not acting else None
        return encode_prompts(self.llm_tokenizer, prompts, limit)

    def answer_ids(self, answers: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Token ids of each question's answers, `</s>` included."""
        return [
            [encode_output(self.llm_tokenizer, text, self.max_output_txt_len) for text in group] for group in answers
        ]

    def prompt_embeds(self, questions: Sequence[Question], room: int = 0) -> tuple[Tensor, Tensor]:
        """Input of generation, `[image tokens][left pads][prompt]`: embeddings (N, Q + L, H) and mask (N, Q + L).

        ConfigError if `room` more tokens would exceed the language model's positions.
        """
        image_tokens = self.image_tokens(questions)
        ids = self.prompt_ids([question.prompt for question in questions], acting=True)
        language.require_room(self.llm_model, image_tokens, ids, room)
        rows = prompt_rows(ids, self.llm_tokenizer.pad_id)
        text = self.llm_model.get_input_embeddings()(rows.ids.to(self.device))
        mask = torch.cat([torch.ones(image_tokens.shape[:2], dtype=torch.long), rows.mask], dim=1)
        return torch.cat([image_tokens.to(text.dtype), text], dim=1), mask.to(self.device)

    # ---- acting -----------------------------------------------------------------------------------------------------

    @property
    def acting_llm(self) -> PreTrainedModel:
        """The language model with its adapters merged, if it has any; training uses `llm_model`."""
        return self._acting.of(self.llm_model)

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
        """Answers for `samples` {"image", "prompt"}; N * num_captions strings. The arguments are `Decoding`'s.

        `image` is (N, 3, S, S) or video (N, frames, 3, S, S); `prompt` N strings or one for all (else the config's).
        """
        return self.write(
            questions_of(samples, samples.get("prompt", self.prompt)),
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

    def write(self, questions: Sequence[Question], **decoding: Any) -> list[str]:
        """Answers written freely, N * `num_captions` texts, best first."""
        return [written(self.llm_tokenizer, row) for row in self.write_ids(questions, **decoding).ids.tolist()]

    @torch.no_grad()
    def write_ids(self, questions: Sequence[Question], **decoding: Any) -> language.Generated:
        """As `write`, before decoding: new token ids with pads (id 0) after `</s>`, and beam scores."""
        options = Decoding(**decoding)  # TypeError for an argument that LAVIS does not have
        with self.maybe_autocast():
            embeds, mask = self.prompt_embeds(questions, room=options.max_new)
            named = self._acting.named(self, questions)  # None if no prompts are kept
            return language.generate(self.acting_llm, embeds, mask, options, self.llm_tokenizer.eos_id, named)

    @torch.no_grad()
    def score(self, questions: Sequence[Question], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Sum of log-probabilities of each candidate answer and its `</s>`.

        `candidates[n]` are the answers to weigh for question n, any number of them. ValueError for another number of
        lists.
        """
        if len(candidates) != len(questions):
            raise ValueError(f"score: {len(candidates)} lists of candidates for {len(questions)} samples")
        prompts = self.prompt_ids([question.prompt for question in questions], acting=True)
        with self.maybe_autocast():
            image_tokens = self.image_tokens(questions)
            return language.score(self.acting_llm, image_tokens, prompts, self.answer_ids(candidates))

    # ---- learning ---------------------------------------------------------------------------------------------------

    def forward(self, samples: Samples) -> dict[str, Tensor]:
        """Behavioural cloning: `{"loss"}`, see `losses.bc`.

        `samples`: `image` (N, 3, S, S), `text_input` and `text_output`, N strings each. If vision encoder and Q-Former
        are frozen, `query_output` (what `vision.encode_queries` gave) may replace `image`.
        """
        return self.losses(samples, "bc")._asdict()

    def dpo_forward(self, samples: Samples) -> dict[str, Tensor]:
        """DPO: `{"loss", "chosen_reward", "rejected_reward", "chosen_entropy"}`, scalars, see `losses.dpo`.

        `samples`: `image`, `text_input`, `text_output_pos` (the expert's answer), `text_output_neg` (the policy's);
        optionally `ref_logps_pos` and `ref_logps_neg` (N,), which replace the reference policy's computation.
        """
        return self.losses(samples, "dpo")._asdict()

    def answer_logps(
        self,
        questions: Sequence[Question],
        answers: Sequence[Sequence[str]],
        *,
        mean: bool | None = None,
        row_loss: RowLoss | None = None,
    ) -> Tensor:
        """Log-probability of A answers to each question: (N, A), float32, differentiable; see `Student`."""
        prompts = self.prompt_ids([question.prompt for question in questions])
        ids = self.answer_ids(answers)
        backend = language.language_backend(self.part("llm_model"))
        # (N, A): the divisor of each answer's summed log-probability.
        tokens = torch.tensor([[len(answer) for answer in group] for group in ids], device=self.device)
        if not (self.avg_log_probs if mean is None else mean):  # EMMA's means, or DPO's own sums
            tokens = torch.ones_like(tokens)
        with self.maybe_autocast():
            image_tokens = self.image_tokens(questions)  # (N, Q, H)
            announced = (lambda sums, rows: row_loss(sums / tokens[rows], rows)) if row_loss else None
            return backend.answer_logps(image_tokens, prompts, ids, announced) / tokens

    # ---- sizes of texts ---------------------------------------------------------------------------------------------

    @property
    def encode(self) -> Callable[[str], list[int]]:
        """From a text to its token ids, without special tokens."""
        return self.llm_tokenizer.encode

    @property
    def max_answer_tokens(self) -> int:
        """Longer answers are cut to this, `</s>` counted: the original counts a BOS that it then drops."""
        return self.max_output_txt_len - 1

    def answer_tokens(self, answer: str) -> int:
        """Number of tokens of an answer and its `</s>`, as training reads it."""
        return len(encode_output(self.llm_tokenizer, answer, self.max_output_txt_len))

    def budget(self, question: Question) -> int:
        """Tokens for the text of any prompt: `max_txt_len` without the BOS in front; image tokens do not count."""
        return self.max_txt_len - 1

    # ---- weights: see `emac_weights` --------------------------------------------------------------------------------

    def policy_state_dict(self) -> dict[str, Tensor]:
        """All weights of the policy under native names, without the reference; tied weights once."""
        return emac_weights.policy_state(self)

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The weights that train, under native names: what a checkpoint stores."""
        return emac_weights.trainable_state(self)

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave; WeightsError lists keys that are missing, extra or do not fit."""
        emac_weights.take(self, state, self.trainable_state_dict(), "the checkpoint's trainable state")

    def load_checkpoint(self, url_or_filename: str) -> None:
        """Load a weight file or folder of any known format; see `emac_weights.load_checkpoint`."""
        emac_weights.load_checkpoint(self, url_or_filename)

    def frozen_hash(self, dtype: torch.dtype | None = None, trained: Collection[str] | None = None) -> str:
        """Hash of the frozen weights, see `emac_weights.base_hash`; with `dtype`, of them in that number format."""
        return emac_weights.base_hash(self, dtype, trained)

    def reference_hash(self) -> str:
        """Key of cached reference log-probabilities: equal as long as they hold.

        It covers what these depend on beside the samples: the frozen base, the reference's own weights (hashed once),
        and how texts are cut and averaged.
        """
        if not self._reference_hash:
            self._reference_hash = emac_weights.reference_hash(self, self.require_reference())
        return f"{self._reference_hash} {self.max_txt_len} {self.max_output_txt_len} {self.avg_log_probs}"

    def forget_hashes(self) -> None:
        """Compute the hashes anew when they are asked for: other weights were loaded."""
        self._frozen_hash = self._reference_hash = ""

    # ---- DPO's reference policy -------------------------------------------------------------------------------------

    def set_reference(self, state: Mapping[str, Tensor] | None = None, source: str = "the reference state") -> None:
        """Set DPO's reference policy; `None` takes the policy as it is now.

        `state` has native or LAVIS names and holds every weight that trains. Without any adapter in it, the reference
        is the language model without adapters. If names begin with `ref_` (EMMA's whole checkpoints), only those count;
        the policy as it is now has the parts that they lack. WeightsError if the state does not fit.
        """
        self.reference = emac_weights.reference_of(self, state, source)
        self._reference_hash = ""

    def require_reference(self) -> nn.Module:
        """The reference policy's own parts; ConfigError if there is no reference."""
        if self.reference is None:
            raise ConfigError(
                "DPO needs a reference policy: set model.ref_pretrained to the phase-1 checkpoint, "
                "or call set_reference()"
            )
        return self.reference

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """A context in which `answer_logps` speaks for the reference policy; ConfigError if there is none."""
        self.require_reference()
        self._as_reference = True
        try:
            yield
        finally:
            self._as_reference = False
