"""What models are sent, and what a user is told where one cannot be used."""

import io
import sys
import time
from argparse import Namespace
from types import ModuleType, SimpleNamespace

import pytest
from PIL import Image

from lavis.common.errors import ConfigError, MissingExtraError
from lavis.common.paths import REPO_ROOT
from split_inference import vision_models
from split_inference.socket_connection import ServerUnreachable
from split_inference.vision_models import EmacPolicyModel, ServedModel, Turn, conversation, load_model
from tests.hostile_endpoint import ANSWERED, MODES, SLOW, HostileEndpoint, Peak
from xrl_alignment.builders import student

TURN = Turn("where?\n> ", b"\xff\xd8", "jpeg", ())
ENGINE = "prompt_chars seed dtype max_model_len num_envs tensor_parallel_size gpu_memory_utilization enforce_eager"
VLLM_ARGUMENTS = Namespace(model_path="models/none", **dict.fromkeys(f"{ENGINE} temperature max_new_tokens".split(), 1))


def test_a_turn_as_chat_messages():
    system, user = conversation(TURN, "You are a robot.")
    assert system == {"role": "system", "content": "You are a robot."} and user["role"] == "user"
    assert user["content"][0]["image_url"]["url"] == "data:image/jpeg;base64,/9g="
    assert user["content"][1] == {"type": "text", "text": "where?\n> "}


def test_without_vllm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[vllm\]'.*--base-url does not"):
        load_model(VLLM_ARGUMENTS, "")


def test_what_vllm_refuses_is_said_in_its_words(monkeypatch):
    """A double of vLLM's two classes: the first refuses the model, then a prompt."""

    def refuse(*_, **__):
        raise ValueError(
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Shorten it."
        )

    vllm = ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = refuse, lambda **_: None
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    with pytest.raises(ConfigError, match="vLLM cannot load --model-path models/none: .*longer than"):
        load_model(VLLM_ARGUMENTS, "")
    vllm.LLM = lambda **_: SimpleNamespace(chat=refuse)
    with pytest.raises(ConfigError, match="refuses a turn: .*length of 4096 .*--prompt-chars"):
        load_model(VLLM_ARGUMENTS, "").answer([TURN])


@pytest.mark.parametrize(("frames", "blank"), [(1, False), (3, False), (3, True)])
def test_a_student_is_asked_as_evaluate_asks_it(tmp_path, monkeypatch, frames, blank):
    """`policy.skip_rejected` reads the steps, `model.images` the earlier images; `blank_frames` blackens all."""
    batches = []
    policy = SimpleNamespace(frames=frames, act=lambda batch: batches.append(batch) or ["look"])
    monkeypatch.setattr(student, "load_student", lambda *_: (None, None))
    monkeypatch.setattr(student, "make_policy", lambda *_: policy)
    monkeypatch.setattr(student, "prompt_writer", lambda *_, **__: None)
    options = [f"environment.blank_frames={str(blank).lower()}"]
    model = EmacPolicyModel(Namespace(cfg_path=REPO_ROOT / "configs/evaluate/episodes.yaml", options=options))
    images = []
    for grey in (10, 20, 30, 40):
        file = io.BytesIO()
        Image.new("RGB", (300, 300), (grey,) * 3).save(file, "PNG")
        images.append(file.getvalue())
    steps = (("take mug 1 from desk 1", "Nothing happens."),)
    assert model.answer([Turn("> ", images[3], "png", ("look",), steps, images[:3])]) == ["look"]
    ((asked,),) = batches
    seen = [int(image.max()) for image in (*asked.earlier, asked.image)]
    assert seen == ([0] * frames if blank else [10, 20, 30, 40][-frames:])
    assert (asked.steps, asked.admissible_commands) == (steps, ("look",))


SERVED = Namespace(
    prompt_chars=1000,
    num_envs=1,
    model_name="model",
    timeout=0.5,
    max_retries=0,
    temperature=0.0,
    max_new_tokens=8,
    seed=0,
)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:8000/v1", "no connection (Request URL is missing an 'http://' or 'https://' protocol.)"),
        ("http://localhost:9/v1", "no connection (All connection attempts failed)"),  # where nothing listens
    ],
)
def test_an_address_that_cannot_be_asked_is_told_with_the_reason(url, reason):
    model = ServedModel(Namespace(**vars(SERVED), base_url=url), "")
    with pytest.raises(ServerUnreachable) as caught:
        model.answer([TURN])
    model.close()
    assert str(caught.value) == f"the model's server {url}: {reason}"


@pytest.mark.parametrize("mode", sorted(MODES))
def test_an_endpoint_that_attacks_ends_in_one_line_and_in_time(mode, monkeypatch):
    monkeypatch.setattr(vision_models, "_PAUSE_S", 0.5)
    with HostileEndpoint(mode) as server:
        timeout = 0.5 if mode in SLOW else 60.0  # a busy machine is no slow endpoint
        model = ServedModel(Namespace(**{**vars(SERVED), "timeout": timeout}, base_url=server.url), "")
        peak, began = Peak(), time.monotonic()
        try:
            (answer,) = model.answer([TURN])
            assert mode in ANSWERED and answer.encode()  # no half of a surrogate pair
        except ServerUnreachable as error:
            assert mode != "honest" and len(str(error).splitlines()) == 1, error
        finally:
            model.close()
        assert time.monotonic() - began < (15 if mode in SLOW else 60) and peak() < 200 << 20
