"""A planner in this process: any causal language model of Transformers, with a LoRA adapter that the loop trains.

    <folder>/adapter_model.safetensors, adapter_config.json    in peft's form: vLLM and Transformers load it
    <folder>/planner.json                                      hash of the base that it belongs to, and of itself

LoRA is by Hu et al. 2021 (arXiv:2106.09685); peft inserts it. Loading another version replaces weights in place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lavis.common.errors import ConfigError, EmacError, MissingExtraError, MissingFileError, why_unreadable
from lavis.common.files import make_folder, open_to_others, sync, write_json
from lavis.models import fast_llm
from lavis.models.blip2_models.adapters import ActingModel, peft_model
from lavis.models.blip2_models.text import LlmTokenizer, encode_output, encode_prompts, prompt_rows
from xrl_alignment.agents.language.prompt import token_counter
from xrl_alignment.planning.planners.base import PlanAnswer, Planner, PlanQuestion, plan_prompt
from xrl_alignment.planning.planners.grounded import Grounded, PlanGrammar

NOTE = "planner.json"
ALTERNATIVES = 8  # beams among which a plan is looked for that has not failed in this game
_WEIGHTS = "adapter_model.safetensors"
_SAMPLE = 4096  # values of each weight that the base's hash reads, from its beginning and its end


class AdapterError(EmacError, ValueError):
    """An adapter that cannot be used: damaged, or of another base; the text names both sides."""


class LocalPlanner(Planner):
    """`model` writes plans greedily, `max_batch` at a time; an adapter of `rank` beside its linear layers trains.

    `targets` names the layers that have one, by the end of their names; none: all. `examples` are shown before each
    question. `context_tokens` is the room for prompt and answer together. A `grounded` planner writes only plans of the
    grammar (`PlanGrammar`), and in place of one that has failed another one, which a beam search finds. On a CPU plans
    are written by a copy in which the adapter is merged (`ActingModel`), and if that is a plain Llama, keys and values
    of the prompts read last are kept, in at most `kept_mib` MiB. Raises MissingExtraError without peft, and ConfigError
    if the model has no such context, or nothing of it is left for a prompt, or no such layers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: LlmTokenizer,
        *,
        rank: int = 16,
        alpha: int = 32,
        seed: int = 0,
        examples: str = "",
        context_tokens: int = 1024,
        max_answer_tokens: int = 64,
        max_batch: int = 32,
        targets: Sequence[str] = (),
        grounded: bool = False,
        kept_mib: int = 0,
    ) -> None:
        try:
            from peft import LoraConfig
        except ImportError as error:
            raise MissingExtraError("planner.name=local needs peft: pip install -e '.[lora]'") from error
        self.tokenizer = tokenizer
        self.examples = examples
        self.max_answer_tokens = max_answer_tokens
        self.max_batch = max_batch
        self.grounded = grounded
        self.base_hash = _hash_of_base(model)
        self._context = context_tokens
        self._budget = context_tokens - max_answer_tokens - 1  # the BOS token
        self._count = token_counter(tokenizer.encode)
        if self._budget < 1:
            raise ConfigError(f"planner.context_tokens={context_tokens} leaves no room for a prompt")
        positions = getattr(model.config, "max_position_embeddings", None)  # ALiBi's have no limit, and no such entry
        if positions is not None and context_tokens > positions:
            raise ConfigError(f"planner.context_tokens={context_tokens}: the language model has {positions} positions")
        missing = [name for name in targets if not any(key.endswith(name) for key, _ in model.named_modules())]
        if missing:
            names = sorted({key.rpartition(".")[2] for key, one in model.named_modules() if isinstance(one, nn.Linear)})
            raise ConfigError(f"planner.lora_targets: no layer is called {missing[0]}; there are {', '.join(names)}")
        layers = list(targets) or "all-linear"
        with torch.random.fork_rng(devices=[]):  # the adapter's first weights are drawn; the program's seed stays
            torch.manual_seed(seed)
            try:
                self.model = peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers))
            except ValueError as error:  # layers that peft knows no adapter for, as in Mamba
                raise ConfigError(f"planner.lora_targets: {error}") from error
        # What trains is float32, whatever the base has: bfloat16 has 8 bits, so a change of less than about 1/512 of a
        # weight would be rounded away, and most updates are smaller.
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        self.model.eval()
        self.identity = self._hash()
        self._acting = ActingModel()
        self._kept = fast_llm.KeptPrompts(kept_mib)

    # ---- planning ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def plan_all(self, questions: Sequence[PlanQuestion]) -> list[PlanAnswer]:
        """See `Planner`; ConfigError for a question that is longer than the context without any older step."""
        prompts = [self.encode(self.prompt(question)) for question in questions]
        # Examples, task and newest step always stay.
        if prompts and (longest := max(map(len, prompts))) > self._context:
            raise ConfigError(
                f"planner.context_tokens={self._context}: examples, task and newest step alone have {longest} tokens"
            )
        # A question that has a plan asks for a judgement, which no grammar bounds.
        grammars = [PlanGrammar(one) if self.grounded and not one.plan else None for one in questions]
        # Greedy: the same state gets the same plan, in whatever batch it is asked.
        answers = [found[0] for found in self._written(prompts, grammars, beams=1)]
        # A plan that has failed in this game gives way to the most probable other one that a search finds.
        failed = [row for row, one in enumerate(questions) if grammars[row] and answers[row][0] in one.failed]
        found = self._written([prompts[row] for row in failed], [grammars[row] for row in failed], beams=ALTERNATIVES)
        for row, others in zip(failed, found, strict=True):
            fresh = [one for one in others if one[0] and one[0] not in questions[row].failed]
            answers[row] = fresh[0] if fresh else answers[row]
        return [
            PlanAnswer(text, self.identity, len(prompt), count)
            for prompt, (text, count) in zip(prompts, answers, strict=True)
        ]

    def _written(
        self, prompts: Sequence[list[int]], grammars: Sequence[PlanGrammar | None], *, beams: int
    ) -> list[list[tuple[str, int]]]:
        """For each prompt the `beams` most probable texts that a search finds, each with its number of tokens."""
        answers: list[list[tuple[str, int]]] = []
        eos, pad = self.tokenizer.eos_id, self.tokenizer.pad_id
        llm: Any = self.model.get_base_model()  # what peft wraps, with the adapter in its layers
        if llm.device.type == "cpu":  # a GPU multiplies thin matrices in no time, and may have no room for a copy
            llm = self._acting.of(llm)
        self._kept.made_by(self.identity)
        new = {"max_new": self.max_answer_tokens, "min_new": 0, "eos_id": eos, "pad_id": pad}
        size = max(self.max_batch // beams, 1)
        for start in range(0, len(prompts), size):
            batch = grammars[start : start + size]
            rows = prompt_rows(prompts[start : start + size], pad)
            ids = rows.ids.to(llm.device)  # (B, T)
            embeds, mask = llm.get_input_embeddings()(ids), rows.mask.to(llm.device)
            named = fast_llm.Named(self._kept, ids) if self._kept.limit else None
            rule = Grounded(batch, self.tokenizer, beams) if any(batch) else None
            if beams > 1:
                # A score is the sum over tokens, the probability of the whole plan.
                search = fast_llm.BeamSettings(beams, returned=beams, repetition_penalty=1.0, length_penalty=0.0, **new)
                made, _ = fast_llm.beam_search(llm, embeds, mask, search, named, rule)
            else:
                made = fast_llm.greedy(llm, embeds, mask, **new, named=named, rule=rule)
            # Behind a row's EOS stand pads, while other rows went on; a row without one was cut by `max_new`.
            for row, grammar in enumerate(batch):
                texts = []
                for tokens in made[row * beams : (row + 1) * beams].tolist():  # (B * beams, up to max_answer_tokens)
                    written = tokens[: tokens.index(eos)] if eos in tokens else tokens
                    text = self.tokenizer.decode(written).strip()
                    texts.append((grammar.whole(text, cut=eos not in tokens) if grammar else text, len(written)))
                answers.append(texts)
        return answers

    def count(self, text: str) -> int:
        """See `Planner`."""
        return self._count(text)

    def prompt(self, question: PlanQuestion) -> str:
        """The text before the plan, cut to the context."""
        return plan_prompt(question, self.examples, budget=self._budget, count=self._count)

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, BOS in front."""
        (ids,) = encode_prompts(self.tokenizer, [prompt])
        return ids

    def encode_plan(self, plan: str) -> list[int]:
        """Token ids of a plan, EOS behind."""
        return encode_output(self.tokenizer, plan, 4 * len(plan) + 4)  # a token has at least a byte: no plan is cut

    # ---- adapters ---------------------------------------------------------------------------------------------------

    def adapter(self) -> dict[str, Tensor]:
        """The adapter's weights by peft's names, on the CPU."""
        from peft import get_peft_model_state_dict

        return {name: value.detach().cpu() for name, value in get_peft_model_state_dict(self.model).items()}

    def merged(self) -> PreTrainedModel:
        """The language model with the adapter added to its weights; the planner ends with it."""
        merged: Any = self.model.merge_and_unload()
        return merged

    def save_adapter(self, folder: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the adapter; the folder appears when it is whole and on disk. One that is there stays as it is."""
        if folder.exists():
            return
        make_folder(folder.parent)
        # Everything is written and synced beside its place, then renamed: there is a whole folder, or none.
        for left in folder.parent.glob(f".{folder.name}.*.tmp"):  # by a killed process
            shutil.rmtree(left, ignore_errors=True)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        self.model.save_pretrained(str(temporary), save_embedding_layers=False)  # looks for nothing in the network
        open_to_others(temporary)
        write_json(temporary / NOTE, {"base": self.base_hash, "adapter": self.identity, **(facts or {})})
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        os.replace(temporary, folder)
        sync(folder.parent)

    def load_adapter(self, folder: Path) -> None:
        """Take the weights of an adapter that `save_adapter` wrote, in place of this one's.

        Raises MissingFileError; AdapterError if the adapter is damaged, or belongs to another base or another rank.
        """
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        if not (folder / _WEIGHTS).is_file() or not (folder / NOTE).is_file():
            raise MissingFileError(f"no planner's adapter in {folder}: it lacks {_WEIGHTS} or {NOTE}")
        try:
            note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            weights = load_file(folder / _WEIGHTS)
            base = note["base"]
        except Exception as error:  # safetensors raises a kind of its own
            raise AdapterError(f"{folder} cannot be read: {why_unreadable(folder / _WEIGHTS, error)}") from error
        if base != self.base_hash:
            raise AdapterError(
                f"the adapter {folder} belongs to the base {str(base)[:80]}, this planner's base is "
                f"{self.base_hash}: load the language model that it was trained on (planner.model)"
            )
        own = self.adapter()  # of this rank; weights of another rank have other shapes
        if {name: value.shape for name, value in own.items()} != {name: v.shape for name, v in weights.items()}:
            raise AdapterError(f"the adapter {folder} has other weights than planner.lora_rank gives: use its rank")
        set_peft_model_state_dict(self.model, weights)
        self.identity = self._hash()

    def forget(self) -> None:
        """Free the copy that writes plans and the kept prompts, before a training that changes the adapter."""
        self._acting.drop(if_training=True)
        self._kept.forget()

    def changed(self) -> None:
        """Tell that the adapter's weights were trained: the planner is another one."""
        self.identity = self._hash()

    def _hash(self) -> str:
        digest = hashlib.sha256(self.base_hash.encode())
        # The base's hash comes first: the same adapter on another base is another planner.
        for name, value in sorted(self.adapter().items()):
            digest.update(f"{name} {tuple(value.shape)}\n".encode())
            digest.update(value.float().numpy().tobytes())
        return digest.hexdigest()[:12]


def _hash_of_base(model: PreTrainedModel) -> str:
    """A hash of the weights' names and shapes and of some values of each (a whole large model takes minutes)."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        flat = value.detach().flatten()
        for part in (flat[:_SAMPLE], flat[-_SAMPLE:]):
            digest.update(part.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]
