"""HfVlm: a vision-language model of the hub as the student, (images, prompt) -> action text.

    question -> chat template and processor (`chat`) -> AutoModelForImageTextToText with peft's adapters -> answer

The frozen weights are the folder's own; what trains are adapters on the linear layers of the parts that `model.freeze`
does not name (LoRA, arXiv:2106.09685), or without adapters these parts themselves. DPO's reference policy costs no
second model: it is the frozen weights without adapters if phase 2 starts from these, else a copy of the adapters.

Shapes: N questions, A answers to each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from lavis.common.errors import ConfigError
from lavis.common.files import open_to_others
from lavis.common.registry import registry
from lavis.models.blip2_models import weights
from lavis.models.blip2_models.adapters import is_adapter
from lavis.models.blip2_models.language import recompute
from lavis.models.decoding import NewTokensPenalty, forget_decoding
from lavis.models.folder_note import write_note
from lavis.models.hf_vlm import loading
from lavis.models.hf_vlm.adapters import fitting_weights, plain_name, stored_weights, with_adapters
from lavis.models.hf_vlm.chat import Chat, Encode, Inputs, joined, on
from lavis.models.hf_vlm.logps import answer_logits, check_image_tokens, shares_prompts, summed_logps
from lavis.models.hf_vlm.options import MODEL_TYPES, amp_of, checked_options
from lavis.models.student import Decoding, Question, RowLoss, Samples, questions_of
from lavis.models.student_model import StudentModel

if TYPE_CHECKING:
    from typing_extensions import Self

# Keys of the config that the constructor takes as they are.
CONSTRUCTED = (
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "lora_targets",
    "freeze",
    "low_memory",
    "allow_random",
    "max_output_txt_len",
    "avg_log_probs",
    "mix_ratio",
)


@registry.register_model("hf_vlm")
class HfVlm(StudentModel):
    """The policy; build it with `from_config` (or `lavis.models.load_model_and_preprocess`)."""

    PRETRAINED_MODEL_CONFIG_DICT = MODEL_TYPES

    # ---- assembly ---------------------------------------------------------------------------------------------------

    def __init__(
        self,
        *,
        vlm: PreTrainedModel,
        chat: Chat,
        lora_rank: int = 16,
        lora_alpha: int = 32,
        lora_dropout: float = 0.0,
        lora_targets: str | Sequence[str] = "all-linear",
        freeze: Sequence[str] = ("vision",),
        low_memory: bool = False,
        max_output_txt_len: int = 64,
        avg_log_probs: bool = True,
        mix_ratio: float = 0.5,
        amp: torch.dtype | None = None,
        sources: Mapping[str, str] | None = None,
        allow_random: Sequence[str] = (),
    ) -> None:
        """Put adapters into `vlm` (`lora_rank` 0: none) and freeze the rest; ConfigError if they fit nowhere."""
        super().__init__()
        self.chat = chat
        self.frames = chat.images
        self.max_output_txt_len = max_output_txt_len
        self.avg_log_probs = avg_log_probs
        self.mix_ratio = mix_ratio
        self.amp = amp
        self.low_memory = low_memory
        self.sources = dict(sources or {})
        self.allow_random = tuple(allow_random)
        self.shares_prompts = shares_prompts(vlm) and not low_memory  # kept keys cannot be recomputed
        self._reference: dict[str, Tensor] | None = None  # of `trainable_state_dict`; empty: without adapters
        forget_decoding(vlm)
        vlm.requires_grad_(False)
        if low_memory:
            # Gradients must reach the adapters through recomputed layers whose own weights are frozen, behind frozen
            # embeddings: so inputs that have a gradient.
            recompute(vlm)
            vlm.enable_input_require_grads()
        if lora_rank:
            self.vlm: nn.Module = with_adapters(
                vlm, rank=lora_rank, alpha=lora_alpha, dropout=lora_dropout, targets=lora_targets, freeze=freeze
            )
        else:
            self.vlm = vlm
            for name, parameter in vlm.named_parameters():
                parameter.requires_grad_(loading.part_of(vlm, name) not in freeze)
        self.eval()

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> Self:
        """Build from the `model:` section (keys: `options.CONFIG_DEFAULTS`).

        ConfigError, MissingFileError and WeightsError, which name the key, for what cannot be a student.
        """
        options = checked_options(cfg)
        path = str(options["path"])
        config = loading.load_config(path)
        processor = loading.load_processor(path, config)
        reading = {"images": options["images"], "image_last": options["image_last"]}
        chat = Chat(processor, config, longest=options["max_txt_len"], cuts=options["cut_prompts"], **reading)
        vlm, sources = loading.load_model(path, config, options)
        check_image_tokens(vlm, chat, path)
        amp = amp_of(options)
        # The adapters' first values come from a seed of their own, so that the run's generator stays where it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options["init_seed"])
            model = cls(
                vlm=vlm,
                chat=chat,
                amp=getattr(torch, amp) if amp else None,
                sources=sources,
                **{name: options[name] for name in CONSTRUCTED},
            )
        if options["pretrained"] and options["load_pretrained"]:
            model.load_checkpoint(str(options["pretrained"]))
        if options["ref_pretrained"]:
            model.set_reference(stored_weights(model, "ref_pretrained", str(options["ref_pretrained"])))
        return model

    @property
    def base(self) -> PreTrainedModel:
        """The Transformers model, its adapters in place."""
        return self.vlm.get_base_model() if hasattr(self.vlm, "peft_config") else self.vlm  # type: ignore[operator, return-value]

    def train(self, mode: bool = True) -> Self:
        """Training mode for what trains: the adapters' dropout. The base stays in evaluation mode."""
        super().train(False)
        self.training = mode
        for name, module in self.vlm.named_modules():
            if ".lora_dropout" in name:
                module.train(mode)
            elif isinstance(module, GradientCheckpointingLayer) and self.low_memory:
                module.training = mode  # a layer recomputes only while it trains
        return self

    def require_sources(self) -> None:
        """ConfigError if the folder lacked weights of a part, which are random then."""
        lacking = [
            part for part in ("vision", "language") if part not in self.sources and part not in self.allow_random
        ]
        if lacking:
            raise ConfigError(
                f"model.path: the folder lacks weights of the {' and '.join(lacking)} part, which would be random: "
                f"copy it anew, or set model.allow_random=[{','.join(lacking)}]"
            )

    # ---- acting -----------------------------------------------------------------------------------------------------

    def generate(self, samples: Samples, prompt: str = "", **decoding: Any) -> list[str]:
        """LAVIS's call: answers for `samples` {"image", "prompt" or "text_input"}; `decoding` is `Decoding`'s."""
        return self.write(questions_of(samples, samples.get("prompt", samples.get("text_input", prompt))), **decoding)

    @torch.no_grad()
    def write(self, questions: Sequence[Question], **decoding: Any) -> list[str]:
        """Answers written freely, N * `num_captions` texts, best first."""
        options = Decoding(**decoding)  # TypeError for an argument that LAVIS does not have
        self.require_sources()
        batch = joined([self._read(question) for question in questions], self.chat.pad_id)
        length = batch["input_ids"].shape[1]
        beams = options.num_beams
        # `top_k=0` is none: with None, Transformers takes its own default, the 50 most probable tokens. The settings of
        # sampling are None for a search, for which Transformers would warn of them.
        # What is None here is Transformers' default: the folder's generation_config.json is left out (`__init__`).
        settings = GenerationConfig(
            max_new_tokens=options.max_new,
            min_new_tokens=options.min_new,
            num_beams=beams,
            do_sample=options.use_nucleus_sampling,
            top_p=options.top_p if options.use_nucleus_sampling else None,
            top_k=0 if options.use_nucleus_sampling else None,
            temperature=options.temperature if options.use_nucleus_sampling else None,
            length_penalty=float(options.length_penalty) if beams > 1 else None,  # of beams alone: else a warning
            num_return_sequences=options.num_captions,
            eos_token_id=self.chat.end_id,
            pad_token_id=self.chat.pad_id,
        )
        base: Any = self.base
        penalty = options.repetition_penalty
        processors = LogitsProcessorList([NewTokensPenalty(float(penalty))] if penalty != 1 else [])
        with self.maybe_autocast():
            made = base.generate(
                **on(batch, self.device, base.dtype), generation_config=settings, logits_processor=processors
            )
        prompt = batch["input_ids"].repeat_interleave(options.num_captions, 0).to(made.device)
        if made.shape[1] >= length and torch.equal(made[:, :length], prompt):
            made = made[:, length:]  # InstructBLIP's language model gives the new tokens alone, the others all
        return [self.chat.decode(row) for row in made.tolist()]

    @torch.no_grad()
    def score(self, questions: Sequence[Question], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Summed log-probability of each candidate and its end; the prompt is computed once for all of them."""
        if len(candidates) != len(questions):
            raise ValueError(f"score: {len(candidates)} lists of candidates for {len(questions)} samples")
        if not any(candidates):  # an empty batch has no longest row
            return [[] for _ in candidates]
        # Questions may have different numbers of candidates: one flat list, cut again into its groups.
        flat = self._summed(questions, candidates).tolist()
        ends = [sum(map(len, candidates[: n + 1])) for n in range(len(candidates))]
        return [flat[end - len(group) : end] for end, group in zip(ends, candidates, strict=True)]

    @torch.no_grad()
    def next_logps(self, question: Question, ids: Sequence[int]) -> Tensor:
        """Log-probabilities (len(ids), vocabulary), float32, of what may stand at each place of the answer `ids`."""
        with self.maybe_autocast():
            (logits,) = answer_logits(self.base, [self._read(question)], [ids], self.chat.pad_id)
        return logits.float().log_softmax(-1)

    # ---- learning ---------------------------------------------------------------------------------------------------

    def answer_logps(
        self,
        questions: Sequence[Question],
        answers: Sequence[Sequence[str]],
        *,
        mean: bool | None = None,
        row_loss: RowLoss | None = None,
    ) -> Tensor:
        """Log-probability of A answers to each question: (N, A), float32, differentiable; see `Student`."""
        sums = self._summed(questions, answers).view(len(questions), -1)
        if not (self.avg_log_probs if mean is None else mean):
            return sums
        return sums / torch.tensor([[self.answer_tokens(a) for a in group] for group in answers], device=sums.device)

    def forward(self, samples: Samples) -> dict[str, Tensor]:
        """Behavioural cloning: `{"loss"}`, see `losses.bc`."""
        return self.losses(samples, "bc")._asdict()

    def _summed(self, questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> Tensor:
        """Sums over answers' tokens, one number for each answer in the order of `answers`."""
        self.require_sources()
        ids = [self.chat.answer_ids(text, self.max_output_txt_len) for group in answers for text in group]
        rows = [n for n, group in enumerate(answers) for _ in group]
        prompts = [self._read(question) for question in questions]
        with self.maybe_autocast():
            return summed_logps(self.base, prompts, rows, ids, self.chat.pad_id, share=self.shares_prompts)

    def _read(self, question: Question) -> Inputs:
        return self.chat.read(question) if question.encoded is None else question.encoded

    def encoded(self, questions: Sequence[Question]) -> Sequence[Question]:
        """The questions with the processor's outputs, which policy and reference both read."""
        return [q if q.encoded is not None else replace(q, encoded=self.chat.read(q)) for q in questions]

    # ---- DPO's reference policy -------------------------------------------------------------------------------------

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference policy."""
        return self._reference is not None

    def set_reference(self, state: Mapping[str, Tensor] | None = None) -> None:
        """Take `state` (of `trainable_state_dict`), or the policy as it is now, as reference.

        Adapters that change nothing (as they begin: their second factor is 0) are not kept: the reference is the base.
        """
        own = self.trainable_state_dict()
        given = own if state is None else fitting_weights(own, state, "the reference state")
        # LoRA begins with B = 0 (arXiv:2106.09685, section 4.1), so that B A = 0 whatever A is.
        changes_nothing = all(map(is_adapter, own)) and not any(v.any() for k, v in given.items() if ".lora_B." in k)
        self._reference = {} if changes_nothing else {k: v.detach().clone() for k, v in given.items()}

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """A context in which `answer_logps` speaks for the reference policy; ConfigError if there is none."""
        if self._reference is None:
            raise ConfigError(
                "DPO needs a reference policy: set model.ref_pretrained to the phase-1 checkpoint, or call "
                "set_reference()"
            )
        if not self._reference and hasattr(self.vlm, "disable_adapter"):
            adapted: Any = self.vlm
            with adapted.disable_adapter():
                yield
            return
        # The weights change places with the reference's: no second model, no copy of the frozen part.
        own, mode = {name: weight.data for name, weight in self._trained().items()}, self.training
        try:
            self.train(False)  # what the reference says is kept for the run: no dropout in it
            for name, weight in self._trained().items():
                weight.data = self._reference[name].to(weight.device, weight.dtype)
            yield
        finally:
            self.train(mode)
            for name, weight in self._trained().items():
                weight.data = own[name]

    @property
    def swaps_reference(self) -> bool:  # type: ignore[override]
        """Whether the reference has weights of its own, which take the places of the policy's."""
        return bool(self._reference)

    def reference_hash(self) -> str:
        """Key of cached reference log-probabilities: base, the reference's own weights, and how texts are read."""
        if self._reference is None:
            with self.as_reference():  # says that there is none
                pass
        how = f"{self.chat.longest} {self.max_output_txt_len} {self.avg_log_probs} {self.chat.images}"
        how += " image_last" if self.chat.image_last else ""
        return f"{weights.digest(self.base_hash(), self._reference or {}, whole=self._reference or {})} {how}"

    # ---- sizes of texts ---------------------------------------------------------------------------------------------

    @property
    def encode(self) -> Callable[[str], list[int]]:
        """From a text to its token ids, without special tokens."""
        return Encode(self.chat.tokenizer)

    @property
    def encode_answer(self) -> Callable[[str], list[int]]:
        """From an answer to its token ids behind a prompt, without its end."""
        return self.chat.encode_answer

    @property
    def max_answer_tokens(self) -> int:
        """Longer answers are cut to this, their end counted."""
        return self.max_output_txt_len

    def answer_tokens(self, answer: str) -> int:
        """Number of tokens of an answer and its end."""
        return len(self.chat.answer_ids(answer, self.max_output_txt_len))

    def budget(self, question: Question) -> int:
        """Tokens left for the prompt's text; ConfigError if images and the chat's own words leave none."""
        left = self.chat.longest - self.chat.overhead(question)
        if left < 1:
            raise ConfigError(
                f"model.max_txt_len={self.chat.longest}: images and the chat's own words alone take "
                f"{self.chat.longest - left} tokens; set a larger one"
            )
        return left

    # ---- weights ----------------------------------------------------------------------------------------------------

    def _trained(self) -> dict[str, nn.Parameter]:
        """What trains, by the names of peft's files (`…lora_A.weight`; peft's modules have the adapter's name, too)."""
        named = self.vlm.named_parameters()
        return {name.replace(".default.", "."): weight for name, weight in named if weight.requires_grad}

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The weights that train: what a checkpoint stores."""
        return {name: weight.detach() for name, weight in self._trained().items()}

    @torch.no_grad()
    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave; WeightsError lists what is missing, extra or does not fit."""
        # Copied in place: the optimiser holds these very parameters.
        fitting = fitting_weights(self.trainable_state_dict(), state, "the checkpoint's trainable state")
        for name, weight in self._trained().items():
            weight.copy_(fitting[name])

    def load_checkpoint(self, url_or_filename: str) -> None:
        """Load a run's checkpoint, or an adapter's folder that peft wrote; errors as `adapters.stored_weights`."""
        self.load_trainable(stored_weights(self, "pretrained", url_or_filename))

    def frozen_hash(self, dtype: torch.dtype | None = None, trained: Collection[str] | None = None) -> str:
        """Hash of the frozen weights and of the names and shapes of those that train, or of the `trained`.

        With `dtype`, of the weights in that number format. It must be the same before and after training.
        """
        base = {name: value for name, value in self.vlm.named_parameters() if not is_adapter(name)}
        if trained is None:
            frozen = {plain_name(name) for name, value in base.items() if not value.requires_grad}
        else:
            frozen = {plain_name(name) for name in base} - {plain_name(name) for name in trained}
        state = {plain_name(name): value for name, value in base.items()}
        return weights.digest("", dict(sorted(state.items())), whole=frozen, dtype=dtype)

    def save_adapter(self, folder: Path | str, played: Mapping[str, Any] | None = None) -> None:
        """Write the adapters as peft does, for `PeftModel.from_pretrained` and vLLM; ConfigError if there are none.

        A note beside them (`folder_note`) names their base, and which games they have trained on (`played`).
        """
        if not hasattr(self.vlm, "peft_config"):
            raise ConfigError("model.lora_rank=0: there are no adapters to write; save the model with save_pretrained")
        self.vlm.save_pretrained(str(folder))  # type: ignore[operator]
        open_to_others(folder)
        write_note(folder, base_hash=self.base_hash(), played=played)

    def replica(self, device: torch.device) -> Self:
        """A copy of the policy on `device`, in evaluation mode and without the reference; ConfigError if quantised."""
        if getattr(self.base, "is_quantized", False):
            # bitsandbytes keeps a layer's scales beside its weight, in tensors that a plain copy loses.
            raise ConfigError(
                "policy.replica_devices: a model with model.quantization cannot be copied to other devices: leave "
                "policy.replica_devices empty, or set model.quantization=none"
            )
        # A replica only acts: the reference would be copied with it for nothing.
        kept, self._reference = self._reference, None
        try:
            return super().replica(device)
        finally:
            self._reference = kept

    def float(self) -> Self:  # the last one: in the class below it the name no longer means the type
        """Weights in float32, which LAVIS has on a CPU; quantised ones stay as they are."""
        if getattr(self.base, "is_quantized", False):
            return self
        if self.amp == torch.float16 == self.base.dtype:
            self.amp = None  # it followed `dtype`, which ends here
        return super().float()
