from __future__ import annotations

import pytest
from PIL import Image

from lavis.common.errors import ConfigError
from policy_server.games.prompts import ModelPrompt
from policy_server.models.loading import load_model
from policy_server.models.vision_model import ChatJob, ChatTurn, ModelJob
from policy_server.settings import ModelSettings
from tests.colour_student import WORDS
from tests.policy_server.servers import ROOM, TINY


@pytest.mark.parametrize("option", [{"quantization": "int8"}, {"dtype": "float16"}])
def test_the_projects_own_model_has_one_precision(option):
    with pytest.raises(ValueError, match=f"model.{next(iter(option))}: a student"):
        load_model(ModelSettings(path=TINY, **option))


def test_a_class_of_ones_own_answers():
    model = load_model(ModelSettings(path="tests.colour_student:ColourStudent", options={"seed": 1}))
    (answer,) = model.answer([ModelJob(Image.new("RGB", (64, 36)), ModelPrompt("", ROOM), 0.0, 16)])
    assert answer and set(answer.split()) <= set(WORDS)
    with pytest.raises(ConfigError, match="model json:JSONDecoder: the class lacks from_config"):
        load_model(ModelSettings(path="json:JSONDecoder"))


def test_an_answer_in_a_chat_is_as_long_as_those_of_training_at_most():
    model = load_model(ModelSettings(path=TINY))
    longest = model.model.max_answer_tokens
    (answer,) = model.chat([ChatJob((ChatTurn("user", ("hello",)),), 0.0, 5 * longest)])
    assert answer.cut and answer.completion_tokens == longest  # random weights come to no end
