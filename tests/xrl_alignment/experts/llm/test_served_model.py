"""A real endpoint: `transformers serve` as a process, with a tiny Llama whose weights make it say one command."""

import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evaluate import main
from tests.split_inference.servers import ServedModel
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.environments import make_environment
from xrl_alignment.evaluation.actors import ExpertActor
from xrl_alignment.evaluation.trials import play_games
from xrl_alignment.experts import Label
from xrl_alignment.experts.llm.endpoint import Endpoint
from xrl_alignment.experts.llm.expert import LLMExpert
from xrl_alignment.experts.llm.teacher import Teacher
from xrl_alignment.experts.llm.tokens import counter_for
from xrl_alignment.language.react import load_prompts

# Transformers' search for the stop string "\n" needs a tokenizer that knows it, and `abcdef`.
WORDS = ["<unk>", "<s>", "</s>", ">", "go", "to", "desk", "1", "abcdef", "\n"]
NEXT = {">": "go", "go": "to", "to": "desk", "desk": "1", "1": "</s>"}


def save_model(folder):
    """A Llama of one layer that does nothing, so that the next word depends on the last one only: a bigram table."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    size = {"vocab_size": 10, "hidden_size": 10, "intermediate_size": 10, "num_attention_heads": 1}
    model = LlamaForCausalLM(
        LlamaConfig(**size, num_hidden_layers=1, max_position_embeddings=8192, bos_token_id=1, eos_token_id=2)
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(10))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for word, following in NEXT.items():
            model.lm_head.weight[WORDS.index(following), WORDS.index(word)] = 20.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Address and model name of a running server."""
    pytest.importorskip("uvicorn", reason="transformers serve needs the dev extra")
    model = save_model(tmp_path_factory.mktemp("model"))
    with ServedModel(model, tmp_path_factory.mktemp("log") / "serve.log") as address:
        yield address, str(model)


@pytest.fixture
def teach(served):
    """Teachers over the served model, whose own tokenizer counts the prompt's tokens."""
    url, model = served
    examples = load_prompts(REPO_ROOT / "prompts" / "alfworld_3prompts.json")
    endpoints = []

    def teach(api):
        endpoints.append(Endpoint(model=model, base_url=url, api=api, environ={}, count=counter_for(model)))
        return Teacher(endpoint=endpoints[-1], examples=examples, max_answer_tokens=8)

    yield teach
    for endpoint in endpoints:
        endpoint.close()


@pytest.mark.parametrize("api", ["chat", "completion"])
def test_both_interfaces_give_labels(teach, api):
    teacher = teach(api)
    expert = LLMExpert(teacher)
    expert.begin("You are in the middle of a room. you see a desk 1. \n\nYour task is to: put a mug in desk.")
    assert expert.act() == Label("go to desk 1")
    used = teacher.endpoint.account.total
    counted = teacher.endpoint.count(expert.prompt()) + teacher.endpoint.count(teacher.system)
    assert used.calls == 1 and used.completion in (4, 5)
    assert abs(used.prompt - counted) <= 2  # the chat template's


def test_it_plays_games_at_once(teach, games):
    teacher = teach("chat")
    results = play_games(
        ExpertActor(lambda environment: LLMExpert(teacher)), games, lambda: make_environment("native"), max_steps=2
    )
    assert [result.actions for result in results] == [2] * len(games)
    assert teacher.endpoint.account.total.calls == 2 * len(games)


def test_the_acceptance_command(served, household_data, tmp_path, monkeypatch, capsys):
    url, model = served
    options = f"expert.name=openai expert.base_url={url} expert.model={model} expert.max_answer_tokens=8 expert.cache= "
    options += f"environment.split=household_heldout environment.data={household_data} run.num_envs=3 run.max_steps=2 "
    options += f"run.num_trials=2 reflexion.reflector=rule run.output={tmp_path / 'result.json'}"
    config = str(REPO_ROOT / "configs" / "evaluate" / "expert.yaml")
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--cfg-path", config, "--options", *options.split()])
    main()
    output = capsys.readouterr().out
    blocks = (tmp_path / "result.world.log").read_text().split("\n-----\nROUND: ")
    assert len(blocks) == 3 and "TOTAL: 3\nACCURACY: 0.00\nTIME: " in blocks[1] and "EXPERT: calls 6," in blocks[1]
    assert "best of 2 trials, with a memory of each failure" in output and "expert openai" in output


def test_an_unknown_model_is_named(served):
    url, _ = served
    endpoint = Endpoint(model="nobody/has-this", base_url=url, environ={}, max_attempts=2, sleep=lambda seconds: None)
    with pytest.raises(EndpointFault):
        endpoint.complete("x")
    endpoint.close()
