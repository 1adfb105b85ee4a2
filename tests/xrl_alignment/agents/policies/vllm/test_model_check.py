"""Another model behind a server is found; rounding is not taken for one."""

from types import SimpleNamespace

import pytest
import torch

from tests.xrl_alignment.agents.policies.vllm.cases import BACKBONE, CPU
from tests.xrl_alignment.agents.policies.vllm.small_engine import SmallEngine
from xrl_alignment.agents.policies.vllm.base import WrittenToken
from xrl_alignment.agents.policies.vllm.http_client import VllmHttpClient
from xrl_alignment.agents.policies.vllm.model_check import TOLERANCE, ModelCheck
from xrl_alignment.builders.student import load_student
from xrl_alignment.common.errors import InferenceEngineFault


def test_slightly_other_weights_are_found_and_rounding_is_not(student, engine):
    client, model_check = VllmHttpClient(60.0), ModelCheck(student[0])
    assert model_check.difference(client, engine.url) < 1e-3
    with torch.no_grad():
        rounded, changed = (load_student(BACKBONE, CPU)[0].llm_model for _ in range(2))
        rounded.bfloat16().float()
        changed.get_decoder().layers[1].mlp.down_proj.weight.mul_(-1)
    differences = []
    for llm in (rounded, changed):
        small = SmallEngine(llm)
        differences.append(model_check.difference(client, small.url))
        small.close()
    # A server that answers without log-probabilities cannot be compared.
    empty = SimpleNamespace(complete=lambda *_, **__: [[WrittenToken(1, {})]] * 9, model_at=client.model_at)
    with pytest.raises(InferenceEngineFault, match="gives no log-probabilities"):
        model_check.difference(empty, "http://somewhere")
    client.close()
    assert differences[0] < TOLERANCE / 2 and differences[1] > 2 * TOLERANCE
