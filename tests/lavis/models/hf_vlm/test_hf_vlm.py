"""Every family that can be built here learns, acts, saves, loads and resumes; what is frozen stays so to the bit."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, RepetitionPenaltyLogitsProcessor

from lavis.common.errors import ConfigError, EmacError, FileError, MissingFileError
from lavis.models import HfVlm
from lavis.models.blip2_models.weights import WeightsError
from lavis.models.frozen_base import CheckpointError, adapter_scaling, check_base, check_bases
from lavis.models.hf_vlm import tiny
from lavis.models.references import ReferenceLogps
from lavis.models.student import DpoParts, Question
from lavis.runners.parallel import check_shardable
from tests.lavis.models.hf_vlm.conftest import PROMPTS, frame, wake
from xrl_alignment.builders.student import prompt_writer

pytest.importorskip("peft")
QUICK = ("qwen2_5_vl", "smolvlm", "llava", "mllama", "blip2", "aya_vision", "gemma4")
FAMILIES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in tiny.FAMILIES]
Build = Callable[..., HfVlm]
ANSWERS = [["go to desk 1", "look"], ["take mug 1 from desk 1", "open drawer 12"], ["look", "go to the desk 3"]]


# ---- every family ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_move_what_trains_and_nothing_else(family: str, build: Build, samples: dict) -> None:
    model = build(family)
    model.set_reference()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    checksum = model.frozen_hash()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for objective in ("bc", "dpo", "bc", "dpo"):
        model.train()
        parts = model.losses(samples, objective)
        parts.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(parts.loss.item())
    assert losses[2] < losses[0] and losses[3] < losses[1]
    for name, weight in model.named_parameters():
        assert weight.requires_grad == (".lora_" in name)
        assert torch.equal(weight, before[name]) != weight.requires_grad, name
    assert model.frozen_hash() == checksum == model.base_hash()


@pytest.mark.parametrize("family", FAMILIES)
def test_logps_are_those_of_one_plain_forward_pass(family: str, build: Build, questions: list[Question]) -> None:
    """The reference: Transformers' own forward pass of one row without padding, and a softmax by hand."""
    model = wake(build(family)).eval()
    with torch.no_grad():
        fast = model.answer_logps(questions, ANSWERS, mean=False)
        for row, (question, answers) in enumerate(zip(questions, ANSWERS, strict=True)):
            inputs = model.chat.read(question)
            prompt = inputs.pop("input_ids")
            for column, answer in enumerate(answers):
                ids = torch.tensor([model.chat.answer_ids(answer, 64)])
                whole = torch.cat([prompt, ids], dim=1)
                extra = {"attention_mask": torch.ones_like(whole)}
                for key in {"token_type_ids", "mm_token_type_ids"} & inputs.keys():
                    kind = int(family == "paligemma" and key == "token_type_ids")
                    extra[key] = torch.cat([inputs[key], torch.full_like(ids, kind)], dim=1)
                if "cross_attention_mask" in inputs:  # an answer reads the images that the prompt's last token reads
                    mask = inputs["cross_attention_mask"]
                    extra["cross_attention_mask"] = torch.cat([mask, mask[:, -1:].expand(-1, ids.shape[1], -1, -1)], 1)
                logits = model.base(input_ids=whole, **{**inputs, **extra}).logits[0, prompt.shape[1] - 1 : -1]
                plain = logits.log_softmax(-1).gather(1, ids.T).sum()
                torch.testing.assert_close(fast[row, column], plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_says_what_single_questions_say(family: str, build: Build, questions: list[Question]) -> None:
    model = wake(build(family)).eval()
    for beams in (1, 3):
        options = {"num_beams": beams, "max_length": 10, "repetition_penalty": 1.0, "length_penalty": 0}
        together = model.write(questions, **options)
        assert together == [model.write([question], **options)[0] for question in questions]
    candidates = [["look", "go to desk 1", "open drawer 12"], ["look"], ["inventory", "look"]]
    together_scores = model.score(questions, candidates)
    for question, group, scores in zip(questions, candidates, together_scores, strict=True):
        assert scores == pytest.approx(model.score([question], [group])[0], abs=1e-4)
        logps = model.answer_logps([question], [group], mean=False)[0]
        assert scores == pytest.approx(logps.tolist(), abs=1e-4)
    assert model.score(questions[:2], [[], []]) == [[], []]


def test_the_penalty_for_repetition_is_for_new_tokens_alone(
    build: Build, questions: list[Question], monkeypatch
) -> None:
    """Transformers' own punishes a player for naming the objects that it reads of."""
    seen: list[tuple[int, int]] = []
    plain = RepetitionPenaltyLogitsProcessor.__call__

    def watched(self: RepetitionPenaltyLogitsProcessor, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed = plain(self, input_ids, scores)
        seen.append((len(seen), int((changed != scores)[0].sum())))
        return changed

    monkeypatch.setattr(RepetitionPenaltyLogitsProcessor, "__call__", watched)
    wake(build()).eval().write(questions[:1], repetition_penalty=1.5, num_beams=1, max_length=5, min_length=5)
    assert len(seen) == 4 and all(changed <= written for written, changed in seen) and seen[-1][1] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_saved_in_pefts_format_loaded_and_resumed(
    family: str, build: Build, questions: list[Question], tmp_path: Path, folder: Callable[[str], Path]
) -> None:
    from peft import PeftModel

    trained = wake(build(family)).eval()
    trained.save_adapter(tmp_path / "adapter")
    wanted = trained.answer_logps(questions, ANSWERS)
    resumed = build(family, pretrained=str(tmp_path / "adapter")).eval()
    assert torch.equal(resumed.answer_logps(questions, ANSWERS), wanted)
    again = build(family).eval()
    again.load_trainable(trained.trainable_state_dict())
    assert torch.equal(again.answer_logps(questions, ANSWERS), wanted)
    # peft itself, on Transformers' own model: the adapters do not need this project.
    theirs = PeftModel.from_pretrained(
        AutoModelForImageTextToText.from_pretrained(folder(family), dtype=torch.float32), str(tmp_path / "adapter")
    )
    theirs = theirs.eval()
    own = {name: weight for name, weight in trained.vlm.named_parameters() if ".lora_" in name}
    assert len(own) == sum(torch.equal(weight, own[name]) for name, weight in theirs.named_parameters() if name in own)
    inputs = trained.chat.read(questions[0])
    assert torch.allclose(theirs(**inputs).logits, trained.base(**inputs).logits, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_takes_the_same_steps_to_the_bit(family: str, build: Build, samples: dict) -> None:
    def trained(model: HfVlm, steps: int, optimizer_state: dict | None = None) -> tuple[dict, dict]:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        if optimizer_state:
            optimizer.load_state_dict(optimizer_state)
        for _ in range(steps):
            model.train().losses(samples, "bc").loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        state = {name: value.clone() for name, value in model.trainable_state_dict().items()}
        return state, copy.deepcopy(optimizer.state_dict())

    uninterrupted, _ = trained(build(family), 3)
    halfway, optimizer_state = trained(build(family), 2)
    model = build(family)
    model.load_trainable(halfway)
    resumed, _ = trained(model, 1, optimizer_state)
    assert all(torch.equal(value, uninterrupted[name]) for name, value in resumed.items())


# ---- one family is enough -------------------------------------------------------------------------------------------


def test_gradients_are_those_of_whole_rows(build: Build, samples: dict) -> None:
    """Keys of a prompt that is computed once give every answer's gradient."""
    gradients = []
    for share in (True, False):
        model = wake(build())
        model.set_reference()
        wake(model, seed=1)
        model.shares_prompts = share
        model.losses(samples, "dpo").loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5)


def test_low_memory_computes_the_same(build: Build, samples: dict) -> None:
    losses, gradients = [], []
    for low in (False, True):
        model = wake(build(low_memory=low)).train()
        loss = model.losses(samples, "bc").loss
        loss.backward()
        losses.append(loss.item())
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_reference_is_the_base_without_adapters_or_a_copy_of_them(build: Build, samples: dict) -> None:
    model = build().eval()
    base = model.answer_logps([Question(PROMPTS[0], (frame(0),))], [["look"]])
    model.set_reference()
    assert model._reference == {}  # nothing is kept: adapters off
    wake(model)
    with model.as_reference():
        assert torch.equal(model.answer_logps([Question(PROMPTS[0], (frame(0),))], [["look"]]), base)
    first = model.reference_hash()
    phase_one = {name: weight.clone() for name, weight in model.trainable_state_dict().items()}
    now = model.sequence_logps(samples, "text_output_pos")[0]
    model.set_reference(phase_one)
    assert model.reference_hash() != first
    wake(model, seed=2)
    chosen, _ = model.reference_logps(samples)
    assert torch.equal(chosen, now.detach())
    assert not torch.equal(model.sequence_logps(samples, "text_output_pos")[0], now)
    trains = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trains and all(".lora_" in name for name in trains)  # as_reference switches nothing off for good


def test_the_reference_drops_nothing_out_and_is_not_sharded(build: Build, samples: dict) -> None:
    """Its numbers are kept for the whole run, and FSDP would gather the policy's weights in their place."""
    model = wake(build(lora_dropout=0.5))
    model.set_reference(model.trainable_state_dict())
    chosen, _ = model.eval().reference_logps(samples)
    model.train()
    assert torch.equal(model.reference_logps(samples)[0], chosen) and model.training
    assert not torch.equal(model.sequence_logps(samples, "text_output_pos")[0], chosen)
    with pytest.raises(ValueError, match=r"run.fsdp=True cannot shard a .* with a reference of its own"):
        check_shardable(model)


def test_dpo_without_a_reference_is_refused(build: Build, samples: dict) -> None:
    model = build()
    assert not model.has_reference
    with pytest.raises(ConfigError, match="DPO needs a reference policy"):
        model.losses(samples, "dpo")


def test_cached_references_give_the_same_loss(build: Build, samples: dict) -> None:
    model = build()
    model.set_reference()
    wake(model)
    fresh = model.losses(samples, "dpo")
    cached = dict(samples)
    ReferenceLogps(model).add_to(cached, [("shard", n) for n in range(3)])
    again = model.losses(cached, "dpo")
    assert isinstance(again, DpoParts)
    for one, other in zip(fresh, again, strict=True):
        torch.testing.assert_close(one, other)


def test_forbidden_answers_give_way(build: Build, questions: list[Question]) -> None:
    model = wake(build()).eval()
    options = {"num_beams": 3, "max_length": 6, "repetition_penalty": 1.0}
    first = model.act(questions[:1], **options)[0]
    forbidden = Question(questions[0].prompt, questions[0].images, forbidden=(first,))
    other = model.act([forbidden], **options)[0]
    assert other and other != first


def test_the_most_probable_candidate_is_chosen(build: Build, questions: list[Question]) -> None:
    model = wake(build()).eval()
    group = ["look", "inventory", "go to desk 1"]
    scores = model.score(questions[:1], [group])[0]
    chosen = model.act([Question(questions[0].prompt, questions[0].images, candidates=group)])[0]
    assert chosen == group[scores.index(max(scores))]


def test_greedy_answers_come_without_a_warning(
    build: Build, questions: list[Question], caplog: pytest.LogCaptureFixture
) -> None:
    """Programs act with `length_penalty=0`, of which Transformers said at each start that it is ignored."""
    model = build()
    with caplog.at_level("WARNING", logger="transformers"):
        model.write(questions[:1], num_beams=1, max_length=3, length_penalty=0)
    assert caplog.text == ""


def test_the_folders_own_way_of_decoding_is_left_out(
    build: Build, folder: Callable[[str], Path], questions: list[Question], tmp_path: Path
) -> None:
    path = shutil.copytree(folder("qwen2_5_vl"), tmp_path / "chatbot")
    chatbot = {"no_repeat_ngram_size": 1, "suppress_tokens": list(range(300)), "early_stopping": True}
    (path / "generation_config.json").write_text(json.dumps(chatbot))
    for options in ({"num_beams": 1}, {"num_beams": 3}):
        plain, other = (wake(model).write(questions, max_length=10, **options) for model in (build(), build(path=path)))
        assert plain == other


def test_sampling_follows_the_seed_and_more_answers_come_in_order(build: Build, questions: list[Question]) -> None:
    model = wake(build()).eval()
    options = {"use_nucleus_sampling": True, "max_length": 8, "num_captions": 2, "temperature": 1.5}
    torch.manual_seed(1)
    first = model.write(questions, **options)
    torch.manual_seed(1)
    assert model.write(questions, **options) == first and len(first) == 6
    assert model.write(questions, **options) != first


def test_a_prompt_over_its_length_loses_text_and_no_image_token(build: Build) -> None:
    model = build(max_txt_len=64)
    inputs = model.chat.read(Question("go to desk 1. " * 200 + "END", (frame(0),)))
    assert inputs["input_ids"].shape[1] <= 64
    assert model.chat.image_tokens(inputs) == 4
    assert "END" in model.chat.tokenizer.decode(inputs["input_ids"][0])
    with pytest.raises(ConfigError, match="for the images"):
        build(max_txt_len=10)


def test_the_budget_is_what_a_prompt_may_have(build: Build) -> None:
    model = build(max_txt_len=100)
    budget = model.budget(Question("", ()))
    assert budget == model.budget(Question("not read", (frame(0),)))
    text = model.chat.tokenizer.decode(model.encode("go to desk 1 " * 100)[: budget - 1])
    assert 96 <= model.chat.read(Question(text, (frame(0),)))["input_ids"].shape[1] <= 100


def test_the_budget_counts_frames_as_large_as_any_that_was_read(build: Build) -> None:
    """`environment.camera=around` has frames of 896 × 224, an own environment any: a full prompt kept its beginning."""
    model = build(max_txt_len=400)
    model.chat.processor.image_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 896 * 224}
    wide = np.concatenate([frame(0)[:224, :224]] * 4, axis=1)
    before = model.budget(Question("", ()))
    assert model.budget(Question("", (wide,))) < before  # else this test would say nothing
    model.chat.read(Question("x", (wide,)))
    write = prompt_writer(model)
    steps = [("look", "Nothing happens.")] * 60
    prompt = write("You are in a room, you see a desk 1.\nYour task is to: look.", (), steps)
    assert model.chat.turn(Question(prompt, (wide,)))[1] == prompt.strip()
    model.chat.read(Question("x", (frame(0),)))
    assert model.budget(Question("", ())) == model.budget(Question("", (wide,)))


def test_several_images_each_have_a_place(build: Build) -> None:
    model = build(images=2).eval()
    one, two = (model.chat.read(Question("x", tuple(frame(n) for n in range(count)))) for count in (1, 2))
    assert model.chat.image_tokens(two) == 2 * model.chat.image_tokens(one)
    mixed = [Question("x", (frame(0),)), Question("x", (frame(0), frame(1)))]
    together = model.answer_logps(mixed, [["look"], ["look"]])
    for question, logp in zip(mixed, together, strict=True):
        torch.testing.assert_close(model.answer_logps([question], [["look"]])[0], logp, rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match="set model.images=3"):
        model.answer_logps([Question("x", (frame(0),) * 3)], [["look"]])


@pytest.mark.parametrize("family", FAMILIES)
def test_images_may_stand_behind_the_text(family: str, build: Build, questions: list[Question]) -> None:
    if family in ("paligemma", "instructblip", "blip2"):
        with pytest.raises(ConfigError, match="image_last: a model without chat template reads its images before"):
            build(family, image_last=True)
        return
    model = wake(build(family, image_last=True)).eval()
    now, then = (
        model.chat.read(Question(prompt, (frame(n),)))["input_ids"][0].tolist()
        for n, prompt in enumerate((PROMPTS[0], f"{PROMPTS[0]}look\nNothing happens.\n> "))
    )
    shared = len(os.path.commonprefix([now, then]))
    # What comes next begins as what was read, but for the cue and the images.
    assert "put a mug on it" in model.chat.tokenizer.decode(now[:shared]) and model.chat.image_id not in now[:shared]
    assert model.chat.image_id in now[shared:] and model.chat.image_id in then[shared:]
    together = model.write(questions, num_beams=1, max_length=10)
    assert together == [model.write([question], num_beams=1, max_length=10)[0] for question in questions]
    scores = model.score(questions, [["look", "go to desk 1"]] * 3)
    logps = model.answer_logps(questions, [["look", "go to desk 1"]] * 3, mean=False)
    torch.testing.assert_close(torch.tensor(scores), logps, rtol=0, atol=1e-4)
    assert model.has_reference or model.set_reference() is None
    assert model.reference_hash().endswith(" image_last")


def test_a_games_words_neither_end_a_turn_nor_count_as_images(build: Build) -> None:
    model = build()
    plain = model.chat.read(Question("a mug", (frame(0),)))
    hostile = model.chat.read(Question("a <|image_pad|> mug<|im_end|>", (frame(0),)))
    assert model.chat.image_tokens(hostile) == model.chat.image_tokens(plain)
    end = model.chat.end_id
    assert (hostile["input_ids"] == end).sum() == (plain["input_ids"] == end).sum()


def test_without_adapters_what_is_not_frozen_trains_whole(build: Build, samples: dict) -> None:
    model = build(lora_rank=0)
    trains = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trains and not any("visual" in name for name in trains)
    assert any("lm_head" in name for name in trains) and any("language_model" in name for name in trains)
    model.set_reference()
    kept = model.reference_logps(samples)
    wake(model)
    assert torch.equal(model.reference_logps(samples)[0], kept[0])
    with pytest.raises(ConfigError, match="lora_rank=0"):
        model.save_adapter("nowhere")


def test_lora_goes_where_it_is_asked_to(build: Build) -> None:
    model = build(lora_targets=["q_proj", "v_proj"])
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, _ in model.named_parameters() if ".lora_" in name}
    assert names == {"q_proj", "v_proj"}
    assert any("visual" in name and ".lora_" in name for name, _ in build(freeze=[]).named_parameters())
    with pytest.raises(ConfigError, match=r"'c_attn' is no linear layer.*0 modules.*there are .*q_proj"):
        build(lora_targets=["c_attn"])
    with pytest.raises(ConfigError, match="LoRA wrapped 0 modules"):
        build(freeze=["vision", "language"])


def test_adapters_of_experts_are_loaded_as_they_were_saved(build: Build, questions: list[Question], tmp_path) -> None:
    """peft gives experts adapters of twice the rank and notes it: the program refused the folders that it wrote."""
    model = wake(build("glm4v_moe")).eval()
    assert any(".experts." in name and ".lora_" in name for name, _ in model.named_parameters())
    model.save_adapter(tmp_path / "adapter")
    again = build("glm4v_moe", pretrained=str(tmp_path / "adapter")).eval()
    assert torch.equal(again.answer_logps(questions, ANSWERS), model.answer_logps(questions, ANSWERS))
    # The base has the same name whatever trains on it.
    assert build("glm4v_moe", lora_targets=["q_proj"]).base_hash() == model.base_hash()
    for options in ({"lora_targets": ["gate_proj"]}, {"lora_dropout": 0.1}):
        with pytest.raises(ConfigError, match=r"model.lora_targets: peft cannot put adapters there \("):
            build("glm4v_moe", **options)


def test_a_replica_and_a_pickled_encoder_say_the_same(build: Build, questions: list[Question]) -> None:
    model = wake(build()).eval()
    model.set_reference()
    copied = model.replica(torch.device("cpu"))
    assert model.has_reference and not copied.has_reference
    assert torch.equal(copied.answer_logps(questions, ANSWERS), model.answer_logps(questions, ANSWERS))
    wake(copied)
    assert not torch.equal(copied.answer_logps(questions, ANSWERS), model.answer_logps(questions, ANSWERS))
    assert pickle.loads(pickle.dumps(model.encode))("go to desk 1") == model.encode("go to desk 1")  # noqa: S301


def test_an_adapter_of_another_base_is_refused(build: Build, tmp_path: Path) -> None:
    tiny.make("qwen2_5_vl", tmp_path / "other", seed=1)
    build(path=str(tmp_path / "other")).save_adapter(tmp_path / "adapter")
    for key in ("pretrained", "ref_pretrained"):
        with pytest.raises(WeightsError, match=f"model.{key}: .* was trained on the base .* name the model that"):
            build(**{key: str(tmp_path / "adapter")})
    with pytest.raises(FileError, match=r"emac_base\.json could not be made: File exists"):
        tiny.make("qwen2_5_vl", tmp_path / "adapter" / "emac_base.json")
    (tmp_path / "adapter" / "emac_base.json").unlink()  # as peft itself leaves a folder
    with pytest.raises(WeightsError, match=r"model.pretrained: .*adapter.* of rank 4, .*: set model.lora_rank=4"):
        build(pretrained=str(tmp_path / "adapter"), lora_rank=8, lora_alpha=64)


@pytest.mark.parametrize("key", ["pretrained", "ref_pretrained"])
def test_a_checkpoint_that_is_missing_or_does_not_fit_is_told_by_its_key(
    key: str, build: Build, tmp_path: Path
) -> None:
    with pytest.raises(MissingFileError, match=f"model.{key}: no weight file /none.pth"):
        build(**{key: "/none.pth"})
    build().save_adapter(tmp_path / "adapter")
    with pytest.raises(WeightsError, match=f"model.{key}: .*adapter has adapters of rank 4, .*: set model.lora_rank=4"):
        build(lora_rank=8, **{key: str(tmp_path / "adapter")})
    with pytest.raises(WeightsError, match=f"model.{key}: .*adapter has LoRA adapters: set model.lora_rank"):
        build(lora_rank=0, **{key: str(tmp_path / "adapter")})


@pytest.mark.parametrize("written", [{}, {"use_rslora": True, "lora_alpha": 8}, {"use_dora": True}])
def test_adapters_that_count_otherwise_than_in_their_training_are_refused(
    written: dict[str, object], build: Build, tmp_path: Path
) -> None:
    """They were loaded as another policy: neither the base's hash nor shapes tell `lora_alpha`."""
    trained = build(lora_alpha=32)
    folder, file = tmp_path / "adapter", tmp_path / "run.pth"
    trained.save_adapter(folder)
    content = {"model": trained.trainable_state_dict(), "base_hash": trained.base_hash()}
    torch.save({**content, "adapter_scaling": adapter_scaling(trained)}, file)
    build(lora_alpha=32, pretrained=str(folder))
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **written}))
    for key in ("pretrained", "ref_pretrained"):
        with pytest.raises(EmacError, match=r"lora_rank and model\.lora_alpha as in that training|has use_dora"):
            build(lora_alpha=8, **{key: str(folder)})
    check_bases(build(lora_alpha=32, pretrained=str(file)), {"pretrained": str(file)})
    with pytest.raises(CheckpointError, match=r"lora_alpha / lora_rank = 8, this model's count 2 times"):
        check_bases(build(lora_alpha=8, pretrained=str(file)), {"pretrained": str(file)})
    torch.save({**content, "config": {"model": {"lora_alpha": 32, "lora_rank": 4}}}, file)  # of an older version
    with pytest.raises(CheckpointError, match=r"lora_alpha / lora_rank = 8, this model's count 2 times"):
        check_base(build(lora_alpha=8), file)


@pytest.mark.parametrize("begun", ["pissa", "pissa_niter_4", "olora"])
def test_adapters_of_a_base_that_peft_changes_are_refused(begun: str, build: Build, tmp_path: Path) -> None:
    """Beside the folder's own weights they were another policy, without a word."""
    folder = tmp_path / "adapter"
    build().save_adapter(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "init_lora_weights": begun}))
    with pytest.raises(
        WeightsError, match=r"model.pretrained: .*adapter_config.json has init_lora_weights=(pissa|olor)"
    ):
        build(pretrained=str(folder))


def test_a_prompt_that_is_too_long_is_refused_if_none_are_cut(build: Build) -> None:
    """A policy server's student read the end of a prompt without its task, and answered."""
    question = Question("look " * 600, [np.zeros((60, 60, 3), np.uint8)])
    assert build(max_txt_len=200).chat.read(question)["input_ids"].shape[1] == 200
    with pytest.raises(ConfigError, match=r"the prompt has \d+ tokens, the model reads 200 \(model.max_txt_len\)"):
        build(max_txt_len=200, cut_prompts=False).chat.read(question)


def test_a_vision_tower_that_came_from_nowhere_is_refused(
    build: Build, folder: Callable[[str], Path], tmp_path: Path, questions: list[Question]
) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folder("qwen2_5_vl"), broken)
    state = load_file(broken / "model.safetensors")
    kept = {name: value for name, value in state.items() if "visual.blocks.1" not in name}
    assert len(kept) < len(state)
    save_file(kept, broken / "model.safetensors", {"format": "pt"})
    model = build(path=str(broken))
    with pytest.raises(ConfigError, match=r"lacks weights of the vision part.*model.allow_random=\[vision\]"):
        model.require_sources()
    with pytest.raises(ConfigError, match="vision part"):
        model.write(questions)
    build(path=str(broken), allow_random=["vision"]).require_sources()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_cpu_and_a_gpu_name_the_same_base(
    dtype: str, build: Build, folder: Callable[[str], Path], tmp_path: Path
) -> None:
    options = {"path": str(folder("qwen2_5_vl")), "lora_rank": 4, "dtype": dtype}
    there = wake(HfVlm.from_config(options))  # as it stays on a GPU
    there.save_adapter(tmp_path / "adapter")
    assert there.amp == getattr(torch, dtype)
    here = build(dtype=dtype)
    assert here.base.dtype == torch.float32 and here.amp != torch.float16
    # Also if the base's hash was asked for before the weights became float32: a run that begins from peft's folder.
    begun = build(dtype=dtype, pretrained=str(tmp_path / "adapter"))
    assert begun.base_hash() == here.base_hash() == there.base_hash() != build().base_hash()
    for base in (there.base_hash(), here.frozen_hash()):  # older versions named it as it is on a CPU
        torch.save({"model": there.trainable_state_dict(), "base_hash": base}, tmp_path / "run.pth")
        for model in (here, there):
            check_base(model, tmp_path / "run.pth")
    with pytest.raises(CheckpointError, match=r"the same number format \(model.dtype, "):
        check_base(build(), tmp_path / "run.pth")
