"""Weights of Blip2Emac in and out: checkpoints, the hash of what is frozen, and DPO's reference policy.

Every state dict here has native names (see `weights`); adapters keep the names they have in a plain language model.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lavis.common.errors import ConfigError
from lavis.models.blip2_models import adapters, weights
from lavis.models.blip2_models.emac_config import PARTS
from lavis.models.blip2_models.emac_parts import EmacParts


class EmacWeights(EmacParts):
    """What of Blip2Emac loads, saves and hashes weights, and holds the reference policy."""

    _base_hash = ""  # both are computed once, and anew after weights were loaded
    _reference_hash = ""

    # ---- state dicts ------------------------------------------------------------------------------------------------

    def policy_state_dict(self) -> dict[str, Tensor]:
        """All weights of the policy under native names, without the reference; tied weights once."""
        tied = set(getattr(self.llm_model, "_tied_weights_keys", None) or ())
        skip = {f"llm_model.{name}" for name in tied} if self.llm_model.config.tie_word_embeddings else set()
        state = {adapters.plain_name(k): v for k, v in self.state_dict().items() if not k.startswith("reference.")}
        return {k: v for k, v in state.items() if k not in skip}

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The weights that train, under native names: what a checkpoint stores."""
        names = {adapters.plain_name(name) for name, value in self.named_parameters() if value.requires_grad}
        return {k: v for k, v in self.policy_state_dict().items() if k in names}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave; WeightsError lists keys that are missing, extra or do not fit."""
        source = "the checkpoint's trainable state"
        weights.require_match(self.trainable_state_dict(), state, source)
        weights.require_finite(state, source)
        self._put(state)

    def _put(self, state: Mapping[str, Tensor]) -> None:
        """Load weights under native names."""
        inner = {adapters.plain_name(name): name for name in self.state_dict()}
        self.load_state_dict({inner.get(name, name): value for name, value in state.items()}, strict=False)

    # ---- files ------------------------------------------------------------------------------------------------------

    def _read(self, path: str | Path) -> dict[str, Tensor]:
        """The tensors of a weight file; without their numbers where the model is on the `meta` device."""
        return weights.read_shapes(path) if self.device.type == "meta" else weights.read_state(path)

    def load_checkpoint(self, url_or_filename: str) -> None:
        """Load a weight file or folder: LAVIS's, the hub's or native names; parts that it lacks keep their weights.

        Keys that begin with `ref_` (EMMA's whole checkpoints) become the reference. Raises MissingFileError, or
        WeightsError for a file that is damaged or does not fit.
        """
        found = self._read(url_or_filename)
        source = f"{url_or_filename} ({weights.format_of(found)} names)"
        state = weights.to_native(found)
        policy, reference = weights.split_reference(state)
        own = self.policy_state_dict()
        present = {_part_of(key) for key in policy}
        policy = {k: v for k, v in policy.items() if k in own or not self._is_text_branch(k)}
        policy = self._without_spare_rows(policy)
        adapted = any(map(adapters.is_adapter, policy))
        if adapted and not any(map(adapters.is_adapter, own)):
            raise ConfigError(f"{source} has LoRA adapters: set model.lora_rank as it was when they were trained")
        expected = self.trainable_state_dict()
        if policy.keys() != expected.keys():
            own = {k: v for k, v in own.items() if adapted or not adapters.is_adapter(k)}
            expected = {k: v for k, v in own.items() if _part_of(k) in present}
        weights.require_match(expected, policy, source)
        weights.require_finite(policy, source)
        self._put(policy)
        self._note(policy, source)
        if reference:
            self.set_reference(state, source=source)

    def load_llm(self, path: str | Path) -> None:
        """Load the language model alone from a file with plain Transformers names; errors as `load_checkpoint`."""
        state = {f"llm_model.{k}": v for k, v in self._read(path).items()}
        state = weights.to_native(state)
        own = {k: v for k, v in self.policy_state_dict().items() if _part_of(k) == "llm_model"}
        own = {k: v for k, v in own.items() if not adapters.is_adapter(k)}
        tied = "llm_model.lm_head.weight"
        if tied not in own:
            state.pop(tied, None)
        weights.require_match(own, state, str(path))
        weights.require_finite(state, str(path))
        self._put(state)
        self._note(state, str(path))

    def load_vision(self, path: str | Path) -> None:
        """Load the vision encoder alone, as EVA-CLIP-g's own file has it (`weights.vision_state`), or any file with it.

        Errors as `load_checkpoint`.
        """
        found = self._read(path)
        source = f"{path} ({weights.format_of(found)} names)"
        own = {k: v for k, v in self.policy_state_dict().items() if _part_of(k) == "visual_encoder"}
        state = weights.vision_state(weights.to_native(found), own)
        if not state:
            raise weights.WeightsError(f"{source} has no vision encoder, which model.vit_weights should bring")
        weights.require_match(own, state, source)
        weights.require_finite(state, source)
        self._put(state)
        self._note(state, source)

    def _note(self, state: Collection[str], source: str) -> None:
        """Note `source` for the parts all of whose weights are in `state`; the hashes are computed anew."""
        self._base_hash = self._reference_hash = ""
        own: dict[str, set[str]] = {}
        for name in self.policy_state_dict():
            if not adapters.is_adapter(name):
                own.setdefault(_part_of(name), set()).add(name)
        self.sources |= {part: source for part, names in own.items() if names <= set(state)}

    def _without_spare_rows(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state with as many rows of word embeddings as the language model has here.

        The hub's InstructBLIP has more, up to the next multiple of 64: one that marks image tokens, and padding. This
        tokenizer uses none of them.
        """
        rows = self.llm_model.config.vocab_size

        def cut(name: str, value: Tensor) -> Tensor:
            table = name.startswith("llm_model.") and name.endswith(("embed_tokens.weight", "lm_head.weight"))
            return value[:rows] if table and rows < len(value) <= rows + 64 else value

        return {name: cut(name, value) for name, value in state.items()}

    def _is_text_branch(self, key: str) -> bool:
        """Whether `key` belongs to the Q-Former's text branch, which a model without Q-Former text does not have."""
        if self.qformer_tokenizer is not None or not key.startswith("Qformer."):
            return False
        return any(s in key for s in (".word_embeddings.", ".position_embeddings.", ".intermediate.")) or (
            ".output." in key and "attention.output." not in key
        )

    # ---- hashes -----------------------------------------------------------------------------------------------------

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
                    digest.update(_bytes_of(value))
            self._base_hash = digest.hexdigest()
        return self._base_hash

    def reference_hash(self) -> str:
        """Key of cached reference log-probabilities: equal as long as they hold.

        It covers what `reference_logps` depends on beside the samples: the frozen base and the reference's own weights
        (hashed once), and how texts are cut and averaged.
        """
        if not self._reference_hash:
            digest = hashlib.sha256(self.base_hash().encode())
            own = {id(parameter) for part in PARTS for parameter in _parameters(getattr(self, part))}
            for name, value in self.require_reference().named_parameters():
                if id(value) not in own:
                    digest.update(f"{name} {tuple(value.shape)}\n".encode())
                    digest.update(_bytes_of(value))
            self._reference_hash = digest.hexdigest()
        return f"{self._reference_hash} {self.max_txt_len} {self.max_output_txt_len} {self.avg_log_probs}"

    # ---- DPO's reference policy -------------------------------------------------------------------------------------

    def require_reference(self) -> nn.Module:
        """The reference policy's own parts; ConfigError where there is no reference."""
        if self.reference is None:
            raise ConfigError(
                "DPO needs a reference policy: set model.ref_pretrained to the phase-1 checkpoint, "
                "or call set_reference()"
            )
        return self.reference

    def set_reference(self, state: Mapping[str, Tensor] | None = None, source: str = "the reference state") -> None:
        """Set DPO's reference policy; `None` takes the policy as it is now.

        `state` has native or LAVIS names and must cover all that trains (but for adapters: without any, the reference
        has none). The reference holds copies of the parts that train or differ, and in them of the weights that do; it
        shares the others. Where names begin with `ref_` (EMMA's whole checkpoints), only those count, and parts they
        lack are taken from the policy as it is now. Raises WeightsError where the state does not fit.
        """
        native = weights.to_native(self.trainable_state_dict() if state is None else state)
        policy, reference = weights.split_reference(native)
        own = self.policy_state_dict()
        new = {k: v for k, v in (reference or policy).items() if k in own or not self._is_text_branch(k)}
        if not any(map(adapters.is_adapter, new)):
            new |= {k: torch.zeros_like(v) for k, v in own.items() if adapters.is_adapter(k)}
        lacking = [] if reference else [k for k in self.trainable_state_dict() if k not in new]
        weights.require_match({k: own[k] for k in own if k in new or k in lacking}, new, source)
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


def _parameters(part: nn.Module | nn.Parameter) -> Iterable[nn.Parameter]:
    return part.parameters() if isinstance(part, nn.Module) else [part]


def _part_of(name: str) -> str:
    return name.split(".", 1)[0]


def _bytes_of(value: Tensor) -> memoryview:
    return value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
