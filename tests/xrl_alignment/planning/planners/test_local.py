"""A language model as planner: its plans, its adapter's versions, and adapters that do not belong to it."""

from __future__ import annotations

import json
from os.path import commonprefix

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, Lfm2Config, MambaConfig

from lavis.common.errors import ConfigError, MissingFileError
from lavis.models.blip2_models.emac_config import package_path
from lavis.models.blip2_models.text import load_llm_tokenizer
from lavis.models.fast_llm import KeptPrompts
from tests.tiny_checkpoints import write_llama
from xrl_alignment.planning.planners.base import PlanAnswer, PlanQuestion
from xrl_alignment.planning.planners.learning import PlanExample, plan_logps, train_planner
from xrl_alignment.planning.planners.local import AdapterError, LocalPlanner
from xrl_alignment.settings.planning import PlannerTraining

QUESTIONS = [
    PlanQuestion("You are in the middle of a room. you see a desk 1.\nYour task is to: put a pen in desk."),
    PlanQuestion("Your task is to: look.", "Nothing happens.", (("take pen", "Nothing happens."),)),
]


def tune(planner) -> None:
    train_planner(planner, [PlanExample(QUESTIONS[0], "go to desk 1")], PlannerTraining(epochs=1))


def test_a_batch_gets_the_answers_of_single_questions_and_counts_tokens(local_planner) -> None:
    planner = local_planner()
    together = planner.plan_all(QUESTIONS)
    assert together == [planner.plan_all([question])[0] for question in QUESTIONS]
    assert [answer.prompt_tokens for answer in together] == [len(planner.encode(planner.prompt(q))) for q in QUESTIONS]
    assert all(answer.planner == planner.identity and 0 < answer.answer_tokens <= 12 for answer in together)


def test_beams_share_a_prompt_that_a_model_of_convolutions_has_read() -> None:
    sizes = {
        "vocab_size": 1024,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    config = Lfm2Config(**sizes, num_key_value_heads=2, layer_types=["conv", "full_attention"])
    model, tokenizer = AutoModelForCausalLM.from_config(config), load_llm_tokenizer(package_path("tiny"))
    planner = LocalPlanner(model, tokenizer, rank=2, max_answer_tokens=4)
    prompts = [planner.encode(planner.prompt(question)) for question in QUESTIONS]
    together = planner._written(prompts, [None, None], beams=3)
    assert together == [planner._written([prompt], [None], beams=3)[0] for prompt in prompts]
    assert [len(answers) for answers in together] == [3, 3]


def test_plans_are_those_of_generate_with_the_adapter(local_planner) -> None:
    """Of Transformers, with the adapter beside its layers: merged it writes the same plans."""
    planner = local_planner()
    before = planner.plan_all(QUESTIONS)
    settings = PlannerTraining(epochs=20, lr=0.02)
    train_planner(planner, [PlanExample(question, "go to desk 1") for question in QUESTIONS], settings)
    after = planner.plan_all(QUESTIONS)
    assert all(old.text != new.text for old, new in zip(before, after, strict=True))  # an adapter that counts
    for question, answer in zip(QUESTIONS, after, strict=True):
        prompt = planner.encode(planner.prompt(question))
        (made,) = planner.model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=3
        ).tolist()
        assert answer.text == planner.tokenizer.decode([i for i in made[len(prompt) :] if i != 2]).strip()


def test_kept_prompts_give_the_same_plans_until_the_adapter_changes(local_planner, monkeypatch) -> None:
    plain, kept = local_planner(), local_planner(kept_mib=8)
    found = []
    find = KeptPrompts.find
    monkeypatch.setattr(KeptPrompts, "find", lambda self, names: found.append(find(self, names)) or found[-1])
    later = [QUESTIONS[0]._replace(history=(("go to desk 1", "You arrive at desk 1."),)), QUESTIONS[1]]
    for questions in (QUESTIONS, later):
        assert [a.text for a in kept.plan_all(questions)] == [a.text for a in plain.plan_all(questions)]
    # Room and task of a prompt that has grown are not read again, and of one that came again only its last token is.
    before, after = (kept.encode(kept.prompt(question)) for question in (QUESTIONS[0], later[0]))
    same = kept.encode(kept.prompt(QUESTIONS[1]))
    assert {one.length for one in found[2:]} == {len(commonprefix([before, after])), len(same) - 1}
    assert len(before) - 3 < len(commonprefix([before, after])) and len(found) == 4
    assert kept._kept._kept and kept._acting._merged is not None
    for planner in (plain, kept):
        tune(planner)
    assert not kept._kept._kept and kept._acting._merged is None  # a training needs the memory
    assert [a.text for a in kept.plan_all(later)] == [a.text for a in plain.plan_all(later)]
    assert found[-2:] == [None, None]


def test_layers_without_an_adapter_are_told() -> None:
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=1024, hidden_size=32, num_hidden_layers=2))
    tokenizer = load_llm_tokenizer(package_path("tiny"))
    with pytest.raises(ConfigError, match="planner.lora_targets: .*out_proj"):
        LocalPlanner(model, tokenizer)


def test_adapters_beside_matrices_of_another_kind_stay_there() -> None:
    """GPT-2's are transposed: nothing is merged, and the adapter counts."""
    config = GPT2Config(vocab_size=1024, n_positions=256, n_embd=32, n_layer=1, n_head=2)
    model, tokenizer = AutoModelForCausalLM.from_config(config), load_llm_tokenizer(package_path("tiny"))
    planner = LocalPlanner(model, tokenizer, max_answer_tokens=6, context_tokens=256)
    before = planner.plan_all(QUESTIONS)
    train_planner(planner, [PlanExample(QUESTIONS[0], "go to desk 1")], PlannerTraining(epochs=30, lr=0.02))
    assert before[0].text != planner.plan_all(QUESTIONS)[0].text == "go to desk 1"


def test_a_plan_is_greedy_whatever_the_folder_says_of_decoding(tmp_path) -> None:
    folder = write_llama(tmp_path)

    def plans() -> list[PlanAnswer]:
        model = AutoModelForCausalLM.from_pretrained(folder)
        return LocalPlanner(model, load_llm_tokenizer(str(folder)), max_answer_tokens=12).plan_all(QUESTIONS)

    greedy = plans()
    chatbot = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(chatbot))
    assert plans() == greedy


def test_question_and_plan_are_one_text_for_a_real_tokenizer(tmp_path) -> None:
    """In planning and in learning: byte-level BPE knows `>` and ` go`, not `> ` and `go`."""
    folder = write_llama(tmp_path)
    planner = LocalPlanner(AutoModelForCausalLM.from_pretrained(folder), load_llm_tokenizer(str(folder)), rank=2)
    prompt, plan = planner.prompt(QUESTIONS[0]), "take pen, go to desk 1"
    tokenizer = planner.tokenizer
    whole = [tokenizer.bos_id, *tokenizer.encode(prompt + plan), tokenizer.eos_id]
    assert planner.encode(prompt) + planner.encode_plan(plan) == whole
    sums, counts = plan_logps(planner, [(QUESTIONS[0], plan)])
    at = len(planner.encode(prompt))
    logps = planner.model(torch.tensor([whole])).logits[0, at - 1 : -1].log_softmax(-1)
    want = logps[range(len(whole) - at), whole[at:]].sum()
    assert counts.tolist() == [len(whole) - at] and torch.allclose(sums[0], want, atol=1e-4)


def test_an_adapter_is_saved_whole_and_loaded_without_a_new_planner(local_planner, tmp_path) -> None:
    planner, other = local_planner(), local_planner()
    assert planner.identity == other.identity
    tune(planner)
    assert planner.identity != other.identity
    (tmp_path / ".a.4711.tmp").mkdir()  # a killed process left it
    planner.save_adapter(tmp_path / "a", {"round": 0})
    other.load_adapter(tmp_path / "a")
    assert other.identity == planner.identity and other.plan_all(QUESTIONS) == planner.plan_all(QUESTIONS)
    assert json.loads((tmp_path / "a" / "planner.json").read_text())["round"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]  # nothing temporary stays
    assert len({file.stat().st_mode for file in (tmp_path / "a").iterdir()}) == 1  # whoever reads one can read all
    before = (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    local_planner(seed=1).save_adapter(tmp_path / "a")
    assert (tmp_path / "a" / "adapter_model.safetensors").read_bytes() == before  # a version never changes


def test_an_adapter_of_another_base_or_rank_is_refused(local_planner, tmp_path) -> None:
    planner = local_planner()
    planner.save_adapter(tmp_path / "a")
    identity = planner.identity
    with pytest.raises(AdapterError, match="belongs to the base .* this planner's base is"):
        local_planner(seed=1).load_adapter(tmp_path / "a")
    local_planner(rank=8).save_adapter(tmp_path / "b")
    with pytest.raises(AdapterError, match="rank"):
        planner.load_adapter(tmp_path / "b")
    assert planner.identity == identity


def test_two_runs_write_the_same_files(local_planner, tmp_path) -> None:
    local_planner().save_adapter(tmp_path / "a")
    targets = json.loads((tmp_path / "a" / "adapter_config.json").read_text())["target_modules"]
    # In the version before in the order of a set, which Python changes from process to process.
    assert len(targets) >= 7 and targets == sorted(targets)


@pytest.mark.parametrize("note", [[], 3, {}, "base", {"base": ["x"] * 1000}])
def test_a_note_of_wrong_types_is_told_in_a_line(local_planner, tmp_path, note) -> None:
    planner = local_planner()
    planner.save_adapter(tmp_path / "a")
    (tmp_path / "a" / "planner.json").write_text(json.dumps(note))
    with pytest.raises(AdapterError) as told:
        planner.load_adapter(tmp_path / "a")
    assert len(str(told.value)) < 600


def test_a_damaged_or_missing_adapter_is_named(local_planner, tmp_path) -> None:
    planner = local_planner()
    planner.save_adapter(tmp_path / "a")
    weights = tmp_path / "a" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(AdapterError, match="cannot be read"):
        planner.load_adapter(tmp_path / "a")
    with pytest.raises(MissingFileError, match="no planner's adapter in"):
        planner.load_adapter(tmp_path / "none")


def test_a_context_without_room_is_refused(local_planner) -> None:
    with pytest.raises(ConfigError, match="leaves no room"):
        local_planner(context_tokens=12)


def test_a_context_that_the_language_model_does_not_have_is_refused() -> None:
    """GPT-2, whose positions are learned, raised an IndexError at the first long prompt, in the midst of a round."""
    config = GPT2Config(vocab_size=1024, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    model, tokenizer = AutoModelForCausalLM.from_config(config), load_llm_tokenizer(package_path("tiny"))
    with pytest.raises(ConfigError, match="planner.context_tokens=33: the language model has 32 positions"):
        LocalPlanner(model, tokenizer, max_answer_tokens=8, context_tokens=33)
    LocalPlanner(model, tokenizer, max_answer_tokens=8, context_tokens=32).plan_all(QUESTIONS)


def test_a_question_that_is_longer_than_the_context_is_told(local_planner) -> None:
    planner = local_planner(context_tokens=20)
    with pytest.raises(ConfigError, match=r"planner.context_tokens=20: examples, task and newest step alone have \d+"):
        planner.plan_all(QUESTIONS)


def test_only_the_adapter_trains(local_planner) -> None:
    planner = local_planner()
    trained = [name for name, value in planner.model.named_parameters() if value.requires_grad]
    assert trained and all(".lora_" in name for name in trained)
    assert all(value.dtype == torch.float32 for value in planner.adapter().values())


def test_an_adapter_beside_some_layers(local_planner) -> None:
    planner = local_planner(targets=["q_proj", "v_proj"])
    layers = {name.split(".")[-3] for name in planner.adapter()}
    assert layers == {"q_proj", "v_proj"}
    with pytest.raises(ConfigError, match=r"planner.lora_targets: no layer is called query; there are .*q_proj"):
        local_planner(targets=["query"])
