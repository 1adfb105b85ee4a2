"""LoRA on the language model and LAVIS's adaptor tuning: what trains, what is saved, what DPO compares with."""

from __future__ import annotations

import builtins
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lavis.common.errors import ConfigError, MissingExtraError
from lavis.models import convert, fast_llm
from lavis.models.blip2_models import adapters
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import model_section
from lavis.models.student import questions_of

Build = Callable[..., Blip2Emac]
FROZEN = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True}
LORA = {**FROZEN, "lora_rank": 4, "lora_alpha": 8}


def stirred(model: Blip2Emac) -> Blip2Emac:
    """With adapters that say something."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(3)
        for name, parameter in model.llm_model.named_parameters():
            if adapters.is_adapter(name):
                parameter.normal_(std=0.2)
    return model


def step(model: Blip2Emac, loss: torch.Tensor) -> set[str]:
    """Names of what one optimiser step over all parameters moved."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    loss.backward()
    optimizer.step()
    return {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}


class TestLora:
    def test_begins_as_no_change_and_has_the_same_base(self, build: Build, samples: dict) -> None:
        plain, adapted = build(**FROZEN), build(**LORA)
        assert torch.allclose(plain(samples)["loss"], adapted(samples)["loss"], atol=1e-6)
        assert plain.generate(samples, max_length=8) == adapted.generate(samples, max_length=8)
        assert plain.base_hash() == adapted.base_hash() == stirred(adapted).base_hash()

    def test_under_autocast_an_adapted_layer_computes_what_peft_computes(self, build: Build) -> None:
        layer = stirred(build(**LORA)).llm_model.model.layers[0].self_attn.q_proj
        weights = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
        x = torch.randn(2, 5, layer.in_features, requires_grad=True)
        direction = torch.randn(2, 5, layer.out_features)
        found = []
        for autocast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                result = layer(x)
            found.append([result, *torch.autograd.grad((result.float() * direction).sum(), [x, *weights])])
        exact, rounded = found
        assert rounded[0].dtype == torch.bfloat16
        for one, other in zip(exact, rounded, strict=True):
            assert other.shape == one.shape and (other.float() - one).norm() < 0.01 * one.norm()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            layer.enable_adapters(False)
            without = layer(x)
            layer.enable_adapters(True)
            assert torch.equal(without, layer.base_layer(x)) and not torch.equal(without, layer(x))
        copied = pickle.loads(pickle.dumps(layer))  # noqa: S301  (its own bytes)
        assert torch.equal(copied(x), layer(x))

    def test_dropout_drops_under_autocast_and_nothing_without_it(self, build: Build, samples: dict) -> None:
        for dropout in (0.5, 0.0):
            model = stirred(build(**LORA, lora_dropout=dropout, amp="bfloat16")).train()
            losses = {model(samples)["loss"].item() for _ in range(3)}
            assert (len(losses) > 1) == (dropout > 0)
        model.llm_model.train()  # peft has no dropout of share 0
        assert model(samples)["loss"].isfinite()

    def test_adapters_and_projection_move_and_nothing_else(self, build: Build, samples: dict) -> None:
        model = stirred(build(**LORA, lora_dropout=0.5))
        model.set_reference()
        moved = step(model.train(), model.dpo_forward(samples)["loss"])
        assert moved == model.trainable_state_dict().keys()
        assert len(moved) == 2 + 2 * 2 * 2  # the projection; layers, targets, two thin matrices each
        training = {name for name, module in model.named_modules() if module.training}
        assert all("lora_dropout" in name for name in training - {"", "llm_proj"}) and len(training) > 2

    def test_the_reference_copies_adapters_and_shares_what_is_frozen(self, build: Build, samples: dict) -> None:
        model = stirred(build(**LORA))
        model.set_reference()
        own = dict(model.llm_model.named_parameters())
        shared = {k for k, p in model.reference.llm_model.named_parameters() if p is own[k]}
        assert {k for k in own if not adapters.is_adapter(k)} == shared
        before = model.reference_logps(samples)
        assert abs(model.dpo_forward(samples)["chosen_reward"].item()) < 1e-6
        step(model.train(), model.dpo_forward(samples)["loss"])
        assert torch.equal(torch.stack(model.reference_logps(samples)), torch.stack(before))
        assert not torch.equal(model.sequence_logps(samples, "text_output_pos")[0], before[0])

    def test_a_reference_without_adapters_is_the_bare_language_model(
        self, build: Build, samples: dict, tmp_path: Path
    ) -> None:
        first = build(**FROZEN, init_seed=4)
        torch.save({"model": first.trainable_state_dict()}, tmp_path / "emma_checkpoint_0.pth")
        paths = dict.fromkeys(("pretrained", "ref_pretrained"), str(tmp_path / "emma_checkpoint_0.pth"))
        model = stirred(build(**LORA, **paths))
        plain = build(**FROZEN, **paths)
        assert torch.allclose(model.reference_logps(samples)[0], plain.reference_logps(samples)[0], atol=1e-5)
        assert not torch.allclose(model.sequence_logps(samples, "text_output")[0], plain.reference_logps(samples)[0])

    def test_trainable_weights_go_out_and_in(self, build: Build, samples: dict, tmp_path: Path) -> None:
        model = stirred(build(**LORA))
        torch.save({"model": model.trainable_state_dict()}, tmp_path / "x.pth")
        other = build(**LORA, pretrained=str(tmp_path / "x.pth"), ref_pretrained=str(tmp_path / "x.pth"))
        assert torch.equal(other(samples)["loss"], model(samples)["loss"])
        assert abs(other.dpo_forward(samples)["chosen_reward"].item()) < 1e-6
        torch.save({"model": model.policy_state_dict()}, tmp_path / "whole.pth")
        again = build(**LORA, init_seed=5, pretrained=str(tmp_path / "whole.pth"))
        assert torch.equal(again(samples)["loss"], model(samples)["loss"])
        strange = {f"base_model.model.{key}": value for key, value in model.trainable_state_dict().items()}
        torch.save({"model": strange}, tmp_path / "hub.pth")  # its adapters' names are such as peft gives
        for rank in (LORA, {}):
            with pytest.raises(ConfigError, match=r"of another kind \(it holds base_model.model.*: set model.arch"):
                build(**rank, pretrained=str(tmp_path / "hub.pth"))
        with pytest.raises(ValueError, match="has LoRA adapters: set model.lora_rank"):
            build(**FROZEN, pretrained=str(tmp_path / "x.pth"))

    def test_a_language_model_alone_is_no_checkpoint(self, build: Build, tmp_path: Path) -> None:
        torch.save(build(**FROZEN).llm_model.state_dict(), tmp_path / "llm.pth")
        with pytest.raises(ConfigError, match=r"llm.pth is a language model alone \(.*: give it as model.llm_weights"):
            build(**FROZEN, pretrained=str(tmp_path / "llm.pth"))

    def test_a_plain_language_model_still_loads(self, build: Build, samples: dict, tmp_path: Path) -> None:
        plain = build(**FROZEN)
        torch.save({"model": plain.policy_state_dict()}, tmp_path / "whole.pth")
        adapted = build(**LORA, init_seed=7)
        adapted.load_checkpoint(str(tmp_path / "whole.pth"))
        assert torch.allclose(adapted(samples)["loss"], plain(samples)["loss"], atol=1e-6)

    def test_acting_merges_the_adapters_and_leaves_all_weights(self, build: Build, samples: dict) -> None:
        """Our kernels compute it; after each change the adapters are merged anew; the base is bit-equal afterwards."""
        model = stirred(build(**LORA)).eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        commands = [["go to desk 1", "look"]] * 3
        questions = questions_of(samples, samples["prompt"])

        def agree() -> bool:
            """Whether acting says what the unmerged model says."""
            scores = torch.tensor(model.score(questions, commands))
            with torch.no_grad():
                return torch.allclose(scores, model.answer_logps(questions, commands, mean=False), atol=1e-3)

        assert not fast_llm.supports(model.llm_model) and fast_llm.supports(model.acting_llm)
        assert agree() and model.acting_llm is model.acting_llm
        assert model.acting_llm.lm_head.weight is model.llm_model.lm_head.weight
        text = model.generate(samples, max_length=8)
        assert model.state_dict().keys() == before.keys()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        for change in (
            lambda: step(model.train(), model(samples)["loss"]),
            lambda: model.load_trainable({k: v for k, v in before.items() if k in model.trainable_state_dict()}),
        ):
            old = model.acting_llm
            change()
            assert model.eval().acting_llm is not old and agree()
        assert model.generate(samples, max_length=8) == text
        assert model.replica(torch.device("cpu")).generate(samples, max_length=8) == text
        plain = build(**FROZEN)
        assert plain.acting_llm is plain.llm_model

    def test_low_memory_gives_the_same_gradient(self, build: Build, samples: dict) -> None:
        gradients = []
        for low_memory in (False, True):
            model = stirred(build(**LORA, low_memory=low_memory)).train()
            model(samples)["loss"].backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
        assert torch.allclose(*gradients, atol=1e-6)

    def test_merged_into_the_exported_language_model(self, tmp_path: Path) -> None:
        section = {"model_type": "tiny", "amp": "", **LORA}
        OmegaConf.save({"model": section}, tmp_path / "config.yaml")
        model = stirred(Blip2Emac.from_config(model_section(str(tmp_path / "config.yaml")))).eval()
        torch.save({"model": model.trainable_state_dict()}, tmp_path / "x.pth")
        command = [str(tmp_path / "x.pth"), str(tmp_path / "llm"), "--to", "llm"]
        assert convert.main([*command, "--model", str(tmp_path / "config.yaml")]) == 0
        ids = torch.arange(20)[None]
        llm = AutoModelForCausalLM.from_pretrained(tmp_path / "llm")
        with torch.no_grad():
            assert torch.allclose(llm(ids).logits, model.llm_model(ids).logits, atol=1e-4)
        apart = [command[0], str(tmp_path / "bare"), *command[2:], "--without-adapters"]
        assert convert.main([*apart, "--model", str(tmp_path / "config.yaml")]) == 0
        bare = AutoModelForCausalLM.from_pretrained(tmp_path / "bare")
        assert torch.equal(bare(ids).logits, adapters.without(model.llm_model)(ids).logits)
        convert.convert(str(tmp_path / "x.pth"), tmp_path / "lavis.pth", "lavis")
        whole = model_section(str(tmp_path / "config.yaml"))
        again = Blip2Emac.from_config({**whole, "pretrained": str(tmp_path / "lavis.pth")})
        want = model.trainable_state_dict()
        assert all(torch.equal(value, want[name]) for name, value in again.trainable_state_dict().items())

    @torch.no_grad()
    def test_adapters_and_what_they_adapt_are_written_apart(self, build: Build, tmp_path: Path) -> None:
        ids, model = torch.arange(20)[None], stirred(build(**LORA)).eval()
        want, plain = model.llm_model(ids).logits, adapters.without(model.llm_model)
        bare = plain(ids).logits
        assert not torch.allclose(bare, want, atol=0.1) and torch.equal(model.llm_model(ids).logits, want)
        assert not any("lora" in name for name in plain.state_dict())
        assert plain.lm_head.weight is model.llm_model.lm_head.weight
        adapters.save(model.llm_model, tmp_path / "adapters")
        convert.export_llm(model, tmp_path / "llm")
        written = AutoModelForCausalLM.from_pretrained(tmp_path / "llm")
        assert torch.allclose(written(ids).logits, bare, atol=1e-4)
        assert torch.allclose(PeftModel.from_pretrained(written, tmp_path / "adapters")(ids).logits, want, atol=1e-4)

    def test_the_settings_of_adapters_are_written_in_a_fixed_order(self, tmp_path: Path) -> None:
        section = model_section("tiny") | {"freeze_llm": True, "lora_rank": 2, "lora_alpha": 4}
        targets = ["v_proj", "up_proj", "q_proj", "o_proj", "k_proj", "gate_proj", "down_proj"]
        model = Blip2Emac.from_config(section | {"lora_targets": targets})
        adapters.save(model.llm_model, tmp_path)
        written = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
        assert written == sorted(targets)  # the order of a set differs from process to process

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"freeze_llm": False}, "model.lora_rank trains adapters of a frozen language model"),
            (
                {"lora_targets": ["query"]},
                "model.lora_targets: .* no layer 'query'; it has down_proj",
            ),
        ],
    )
    def test_what_does_not_go_together(self, build: Build, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build(**{**LORA, **options})

    def test_without_peft_it_names_the_extra(self, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without_peft(name: str, *args: object, **kwargs: object) -> object:
            if name == "peft":
                raise ImportError("No module named 'peft'")
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without_peft)
        with pytest.raises(MissingExtraError, match=r"needs peft: pip install -e '.\[lora\]'"):
            build(**LORA)
        build(**FROZEN)


class TestAdaptorTuning:
    OPTIONS = {**FROZEN, "freeze_qformer": False, "adaptor_tuning": True}

    def test_dense_layers_and_norms_train(self, build: Build, samples: dict) -> None:
        model = build(**self.OPTIONS)
        model.set_reference()
        moved = step(model.train(), model.dpo_forward(samples)["loss"])
        assert moved == model.trainable_state_dict().keys()
        of_qformer = {name for name in moved if name.startswith("Qformer.")}
        assert moved - of_qformer == {"llm_proj.weight", "llm_proj.bias"}
        assert all(".dense." in name or "layernorm." in name.lower() for name in of_qformer)
        still = {name for name in model.policy_state_dict() if name.startswith("Qformer.")} - of_qformer
        assert still and all(name.rsplit(".", 2)[-2] in ("query", "key", "value") for name in still)

    def test_the_reference_shares_what_stays(self, build: Build) -> None:
        model = build(**self.OPTIONS)
        model.set_reference()
        own = dict(model.Qformer.named_parameters())
        same = {name for name, value in model.reference.Qformer.named_parameters() if value is own[name]}
        assert same == {name for name, value in own.items() if not value.requires_grad}

    def test_a_frozen_qformer_has_no_adaptors(self, build: Build) -> None:
        with pytest.raises(ValueError, match=r"model.adaptor_tuning .* set model.freeze_qformer=False"):
            build(**{**self.OPTIONS, "freeze_qformer": True})
