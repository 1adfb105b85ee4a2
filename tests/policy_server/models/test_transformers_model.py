from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from PIL import Image

from policy_server.games.prompts import ModelPrompt
from policy_server.metrics import Metrics
from policy_server.models.loading import load_model
from policy_server.models.pool import ModelBudgetError, ModelPool
from policy_server.models.transformers_model import by_row
from policy_server.models.vision_model import ChatJob, ChatTurn, ModelJob, ModelLoadError, VisionModel
from policy_server.settings import ModelSettings
from tests.tiny_checkpoints import write_llava


def job(number: int, text: str = "what now? ") -> ModelJob:
    image = Image.new("RGB", (64, 36), (40 * number, 90, 9))
    return ModelJob(image, ModelPrompt("answer", text * (number + 1)), 0.0, 4 + number)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    """A LLaVA, because its processor needs no torchvision; Qwen2-VL is tested with `make test-vllm`."""
    folder = write_llava(tmp_path_factory.mktemp("models") / "tiny-llava")
    return load_model(ModelSettings(path=str(folder), device="cpu"))


def test_a_path_in_the_users_own_folder_is_loaded_and_counted(llava: VisionModel, monkeypatch: pytest.MonkeyPatch):
    folder = Path(llava.processor.tokenizer.name_or_path)
    monkeypatch.setenv("HOME", str(folder.parent))
    settings = ModelSettings(path=f"~/{folder.name}", device="cpu")
    assert load_model(settings).bytes == llava.bytes
    pool = ModelPool({"llava": settings}, 1000, Metrics(), load=lambda settings: pytest.fail("it is too large"))
    with pytest.raises(ModelBudgetError):
        pool.get("llava")


def test_rows_of_a_batch_are_answered_as_if_alone(llava: VisionModel):
    """Prompts, images and lengths differ; decoding is greedy."""
    jobs = [job(number) for number in range(3)]
    alone = [answer for each in jobs for answer in llava.answer([each])]
    assert llava.answer(jobs) == alone and len(set(alone)) > 1


def test_a_prompt_longer_than_the_models_positions_is_refused(llava: VisionModel):
    with pytest.raises(ValueError, match=r"need \d+ tokens; the model has \d+ positions"):
        llava.answer([job(0, "what now? " * 2000)])


def chat(*parts: object, max_tokens: int = 8, **how: object) -> ChatJob:
    turns = (ChatTurn("system", ("answer",)), ChatTurn("user", parts))
    return ChatJob(turns, how.pop("temperature", 0.0), max_tokens, **how)


def test_conversations_of_one_call_are_answered_as_if_alone(llava: VisionModel):
    """With one image, with two, with none; each has its own length and nucleus."""
    red, blue = (Image.new("RGB", (64, 36), colour) for colour in ("red", "blue"))
    jobs = [chat(red, "what now?"), chat("what now?", max_tokens=5), chat("first", red, "then", blue, top_p=0.5)]
    jobs.append(chat("what now? " * 20, temperature=0.0, max_tokens=3))
    alone = [answer for each in jobs for answer in llava.chat([each])]
    assert llava.chat(jobs) == alone
    assert all(a.completion_tokens == j.max_tokens if a.cut else True for j, a in zip(jobs, alone, strict=True))
    assert alone[0].prompt_tokens > alone[1].prompt_tokens > 3
    (action,) = llava.answer([ModelJob(red, ModelPrompt("answer", "what now?"), 0.0, 8)])
    assert action == alone[0].text  # an action's prompt is a conversation, too


def test_an_answer_ends_before_a_stop_and_no_token_is_computed_behind_it(llava: VisionModel):
    (whole,) = llava.chat([chat("what now?", max_tokens=12)])
    assert len(whole.text) > 6 and whole.cut
    stop = whole.text[4:6]
    ended, other = llava.chat(
        [chat("what now?", max_tokens=12, stop=("never", stop)), chat("what now?", max_tokens=12)]
    )
    assert ended.text == whole.text[: whole.text.index(stop)] and not ended.cut
    assert ended.completion_tokens < whole.completion_tokens and other == whole


def test_a_clients_words_are_no_image_and_no_turn(llava: VisionModel):
    image = llava.processor.image_token
    (answer,) = llava.chat([chat(f"an {image} and {llava.processor.tokenizer.eos_token}")])
    assert answer.completion_tokens > 0


def test_each_row_has_its_own_temperature():
    scores = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    cold, hot, greedy = by_row(scores, torch.tensor([[0.5], [2.0], [0.0]]))
    assert cold.tolist() == [2.0, 6.0, 4.0] and hot.tolist() == [0.5, 1.5, 1.0]
    assert greedy.softmax(0).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_quantisation_names_its_extra():
    with pytest.raises(ImportError, match=r"int4 needs bitsandbytes: pip install -e '.\[quantization\]'"):
        load_model(ModelSettings(path="some/model", quantization="int4"))


def test_a_mistyped_folder_is_no_hub_id():
    with pytest.raises(ValueError, match=r"model.path=/nowhere/model: no config.json in there"):
        load_model(ModelSettings(path="/nowhere/model"))


@pytest.mark.parametrize("config", ['{"model_type": "nonsense"}', "null"])
def test_a_folder_with_another_kind_of_model_is_named(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError, match=f"model.path={tmp_path} cannot be loaded: "):
        load_model(ModelSettings(path=str(tmp_path)))
