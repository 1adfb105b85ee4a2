"""Training of the student: games are labelled and read as they are acted on, and only what shall train trains."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from alfworld_native.drawing.frames import BLANK_FRAME
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import LEVELS
from lavis.common.errors import ConfigError
from lavis.models.blip2_models.text import IGNORE, FastTokenizer, encode_output, encode_prompts
from lavis.models.played import PlayedGames
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.pretraining import student
from xrl_alignment.lab.pretraining.labelled import SEARCHING, Job, Record, Step, played
from xrl_alignment.lab.pretraining.rows import OWN_MOMENTS, RowWriter
from xrl_alignment.play.rollouts.play import without_questions


@pytest.fixture(scope="module")
def model():
    return load_student({"model_type": "student"}, torch.device("cpu"))[0]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A compound game, played by the explorer without a wrong step."""
    split = tmp_path_factory.mktemp("games") / "household_train"
    split.mkdir()
    game = make_game(split, 1, 3, LEVELS["compound"])
    records = (without_questions(played(Job(game, "compound", f"seed {n}", False))) for n in range(20))
    return next(r for r in records if r.won and not r.renamed and all(s.action == s.label for s in r.steps))


def test_every_action_is_predicted_where_the_prompt_before_it_ends(model, record):
    writer, encode = RowWriter(model), model.encode
    row, at = writer.stretch(record, 0, random.Random(1))
    assert at == len(record.steps) and len(row.ids) == len(row.targets) == len(row.weights)
    told = [(step.action, step.feedback) for step in record.steps]
    for number, step in enumerate(record.steps):
        before = [model.llm_tokenizer.bos_id, *encode(build_prompt(record.text, record.memories, told[:number]))]
        wanted = [*encode(step.label), model.llm_tokenizer.eos_id]
        assert row.ids[: len(before)] == before
        assert row.targets[len(before) - 1 :][: len(wanted)] == wanted
        assert row.weights[len(before) - 1 :][: len(wanted)] == [1.0] * len(wanted)


def byte_level_tokenizer(folder, texts):
    """A byte-level BPE as pretrained models have: the blank before a word is part of the word's token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return FastTokenizer(str(folder))


@pytest.mark.parametrize("actions_only", [False, True])
def test_a_tokenizer_with_blanks_in_its_words_learns_what_acting_writes(record, tmp_path, actions_only):
    told = [(step.action, step.feedback) for step in record.steps]
    tokenizer = byte_level_tokenizer(tmp_path, [build_prompt(record.text, (), told)] * 3)
    assert tokenizer.joins_blank
    reader = SimpleNamespace(llm_tokenizer=tokenizer, max_txt_len=10_000)
    row, _ = RowWriter(reader, actions_only=actions_only).stretch(record, 0, random.Random(1))
    learned = 0
    for number, step in enumerate(record.steps):
        (before,) = encode_prompts(tokenizer, [build_prompt(record.text, record.memories, told[:number])])
        wanted = encode_output(tokenizer, step.label, 1000)
        assert row.ids[: len(before)] == before
        assert row.targets[len(before) - 1 :][: len(wanted)] == wanted
        learned += len(wanted)
    assert sum(weight == 1.0 for weight in row.weights) == learned
    assert (sum(weight > 0 for weight in row.weights) == learned) == actions_only


def test_after_a_wrong_step_the_label_counts_as_far_as_it_agrees(model, record):
    state = record.steps[0].state
    wrong = Record("standard", record.text, (), [Step("go to desk 2", "go to shelf 1", "…", state)], False, False, True)
    row, _ = RowWriter(model).stretch(wrong, 0, random.Random(1))
    start = len(model.encode(build_prompt(record.text, (), ())))  # BOS counted, one place earlier
    go, shelf = model.encode("go to shelf 1")[:2]
    assert row.targets[start : start + 2] == [go, shelf]
    assert set(row.targets[start + 2 : start + 4]) == {IGNORE}


def test_where_to_search_is_read_and_not_learned(model, record):
    unknown = Record("drill", record.text, (), [Step("go to desk 2", SEARCHING, "…", None)], True, True, False)
    row, _ = RowWriter(model).stretch(unknown, 0, random.Random(1))
    start = len(model.encode(build_prompt(record.text, (), ())))
    said, learned = model.encode("go to desk 2"), model.encode("go to")
    assert row.ids[start + 1 :][: len(said)] == said and said[: len(learned)] == learned
    assert row.targets[start:][: len(learned)] == learned
    assert set(row.targets[start:][len(learned) : len(said) + 1]) == {IGNORE}


def test_a_long_game_is_several_rows_none_longer_than_a_prompt_and_an_answer(model, record):
    steps = record.steps * 9
    writer = RowWriter(model)
    long = Record("hardest", record.text, (), steps, True, True, False)
    rows = writer.rows(long, random.Random(2))
    assert len(rows) > 2 and max(len(row.ids) for row in rows) < model.max_txt_len + 200
    learned = sum(sum(weight == 1.0 for weight in row.weights) for row in rows)
    assert learned > 0.5 * sum(len(model.encode(step.label)) for step in steps[: len(steps) // 2])


def test_what_trains_moves_and_the_rest_stays_and_a_second_run_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(student, "WARMUP_STEPS", 1)
    asked = [
        "make_student",
        "--out",
        str(tmp_path),
        "--official",
        "0",
        "--games",
        "4",
        "--drills",
        "2",
        "--levels",
        "standard",
    ]

    def run(tokens: float, *more: str) -> dict:
        monkeypatch.setattr(sys, "argv", [*asked, "--tokens", str(tokens), *more])
        student.main()
        return torch.load(tmp_path / "state.pt", weights_only=True)

    before = load_student({"model_type": "student"}, torch.device("cpu"))[0]
    first = run(1e-6)
    assert (first["pool"], len((tmp_path / "progress.jsonl").read_text().splitlines())) == (1, 1)
    assert not list(tmp_path.glob(".games-*"))
    started = before.trainable_state_dict()
    assert first["weights"].keys() == started.keys() and all(
        not torch.equal(weight, started[name]) for name, weight in first["weights"].items()
    )
    options = {"model_type": "student", "pretrained": str(tmp_path / "student.safetensors")}
    after = load_student(options, torch.device("cpu"))[0]
    assert after.base_hash() == before.base_hash(), "the vision side is frozen"
    assert first["played"]["splits"]
    state = {**first, "played": {**first["played"], "splits": ["train"]}}  # as if it had read official games
    torch.save(state, tmp_path / "state.pt")
    again = run(first["read"] / 1e6 + 1e-6, "--student-drives", "0.5", "--plot", str(tmp_path / "plot.svg"))
    assert (tmp_path / "plot.svg").read_bytes().startswith(b"<?xml")
    assert set(again["played"]["splits"]) > {"train"}, "what the weights have read stays said"
    assert again["pool"] == 2 and again["read"] > first["read"]
    line = json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[1])
    assert sum(games for _, games in line["own"].values()) == 2, "the student played its share: half of four games"


def test_a_run_that_was_killed_goes_on_at_the_rate_that_it_had(tmp_path, monkeypatch):
    monkeypatch.setattr(student, "WARMUP_STEPS", 1)
    note = student.Trainer.note

    class KilledError(Exception):
        pass

    def rate_after(pool: int, tokens: int) -> float:
        """The rate of the last update of `pool`; there the run is killed."""

        def killed(self, *args):
            note(self, *args)
            if self.pool == pool:
                raise KilledError

        monkeypatch.setattr(student.Trainer, "note", killed)
        model, vis_processor = load_student({"model_type": "student"}, torch.device("cpu"))
        trainer = student.Trainer(model, vis_processor, tmp_path, 0, PlayedGames())
        with pytest.raises(KilledError):
            trainer.run(student.Pools(number=0, mixture={"standard": 1.0}, drills=2), tokens=tokens, lr=1e-3)
        return trainer.optimizer.param_groups[0]["lr"]

    assert rate_after(2, 3800) == 1e-3  # it falls over the last third of the run
    assert rate_after(3, 3800) < 0.95e-3
    assert rate_after(4, 400_000) == 1e-3, "another goal is another run"


@pytest.mark.parametrize("writes", ["append_line", "write_weights", "save_whole"])
def test_a_run_that_was_killed_at_its_last_save_ends_with_the_weights_of_its_state(tmp_path, monkeypatch, writes):
    """Before, the state said that all tokens were read, and nothing wrote the weights, or the line, any more."""

    class KilledError(Exception):
        pass

    def killed(*_args):
        raise KilledError

    def run() -> None:
        model, vis_processor = load_student({"model_type": "student"}, torch.device("cpu"))
        trainer = student.Trainer(model, vis_processor, tmp_path, 0, PlayedGames())
        trainer.run(student.Pools(number=0, mixture={"standard": 1.0}, drills=2), tokens=100, lr=1e-3)

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(student, writes, killed)
        run()
    run()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    written = load_file(tmp_path / "student.safetensors")
    assert all(torch.equal(written[name], weight.bfloat16()) for name, weight in state["weights"].items())
    # Nor is a pool without its line of progress.
    assert [line["pool"] for line in student.read_progress(tmp_path / "progress.jsonl")] == [1]


def test_a_model_that_is_frozen_is_refused(tmp_path):
    frozen = load_student({"model_type": "student", "freeze_llm": True, "freeze_proj_layer": True}, torch.device("cpu"))
    with pytest.raises(ConfigError, match="nothing trains: every part"):
        student.Trainer(frozen[0], None, tmp_path, 0, PlayedGames())


def test_two_runs_share_their_weights(tmp_path, capsys):
    ours, theirs = (load_student({"model_type": "student"}, torch.device("cpu"))[0] for _ in range(2))
    started = {name: weight.clone() for name, weight in ours.trainable_state_dict().items()}
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += weight.requires_grad
    (tmp_path / "b").mkdir()
    trainer = student.Trainer(ours, None, tmp_path / "a", 0, PlayedGames())
    trainer.average(tmp_path / "b" / "state.pt")
    assert f"{tmp_path / 'b'} holds no weights yet" in capsys.readouterr().out
    state = {"weights": theirs.trainable_state_dict(), "played": PlayedGames(splits=("train",)).as_dict()}
    torch.save(state, tmp_path / "b" / "state.pt")
    for _ in range(2):  # once: the same weights are not taken again
        trainer.average(tmp_path / "b" / "state.pt")
        for name, weight in ours.trainable_state_dict().items():
            torch.testing.assert_close(weight, started[name] + 0.5)
    assert trainer.played.splits == ("train",), "what the other has read counts"


def test_the_image_of_an_untold_moment_is_its_own(model, record):
    writer = RowWriter(model)
    at = next(i for i, step in enumerate(record.steps) if step.action.startswith("take "))
    row = writer.moment(record, at)
    text = model.llm_tokenizer.decode(row.ids)
    assert ", you see a" not in text.partition("Your task")[2] and (row.frame != BLANK_FRAME).any()
    own = replace(record, untold=True)
    kinds = [row.kind for row in writer.rows(own, random.Random(1))]
    assert kinds == ["untold"] * min(OWN_MOMENTS, len(record.steps))


@pytest.mark.parametrize(
    "wrong",
    [
        ["--official", "2"],
        ["--student-drives", "-1"],
        ["--tokens", "nan"],
        ["--games", "0", "--drills", "0"],
        ["--threads", "0"],
    ],
)
def test_impossible_numbers_are_refused(tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(sys, "argv", ["make_student", "--out", str(tmp_path), *wrong])
    with pytest.raises(ConfigError, match=wrong[0]):
        student.main()


def test_a_drawing_that_cannot_be_written_is_told_before_the_training(tmp_path):
    with pytest.raises(ConfigError, match="--plot=.* cannot be written"):
        student.parse_arguments(["--out", str(tmp_path / "out"), "--plot", str(tmp_path)])
