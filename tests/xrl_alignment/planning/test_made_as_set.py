"""That each setting of EMAC+'s loop reaches what it is for: evaluations, planner, agent, endpoint."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import torch

from lavis.common.paths import REPO_ROOT
from xrl_alignment.builders.environments import environment_factory
from xrl_alignment.planning import building
from xrl_alignment.planning.building import LoopGames, build_loop
from xrl_alignment.planning.planners.endpoint import EndpointPlanner
from xrl_alignment.planning.planners.local import LocalPlanner
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.planning import EmacPlusConfig

DEMO = REPO_ROOT / "configs" / "emac_plus" / "demo.yaml"
EXAMPLES = REPO_ROOT / "prompts" / "planner_examples.txt"
AGENT = ["run.seed=7", "run.dpo_beta=0.7", "run.max_batch=5", "run.num_threads=1"]


def test_each_evaluation_has_the_one_thing_changed_that_its_name_says(monkeypatch, tmp_path) -> None:
    asked = ["run.robustness=true", "run.report_noise=true", "run.switches=[no_reports]"]
    config = load_config(EmacPlusConfig, DEMO, asked)
    done: dict[str, dict[str, Any]] = {}
    loop = Mock()
    loop.run = lambda games: done.update({"run": {"games": games}})
    loop.evaluate = lambda name, games, **given: done.update({name: {"games": games, **given}}) or {"success": name}
    monkeypatch.setattr(building, "build_loop", lambda *given, **options: loop)
    games = LoopGames(["training"], ["heldout"], ["official"])  # type: ignore[list-item]
    summary, _, _ = building._play_loop(config, games, tmp_path)
    loop.close.assert_called_once()

    before = list(done)[: list(done).index("run")]
    assert done.pop("run")["games"] == ["training"] and before == [name for name in done if "before" in name]
    for name, given in done.items():
        assert given["games"] == (["official"] if "valid_seen" in name else ["heldout"]), name
        assert given["agent"] == name.startswith("agent_"), name
    assert summary["agent_no_reports"] == {"success": "agent_no_reports", "planner_success": "planner_no_reports"}

    def changed(name: str) -> dict[str, Any]:
        """What an evaluation has besides the settings: fields of the environment, of the rules, or of the plans."""
        given = {key: value for key, value in done[name].items() if key not in ("games", "agent")}
        made, usual = given.pop("make_environment", None), environment_factory(config.environment, config.run.max_steps)
        if made:
            given |= {key: value for key, value in made.keywords.items() if usual.keywords[key] != value}
        rules = vars(given.pop("rules", config.planner))
        return given | {key: value for key, value in rules.items() if getattr(config.planner, key) != value}

    fixed = {f"replan_{trigger}": False for trigger in ("rejected", "not_found", "seen", "exhausted")}
    for who in ("planner", "agent"):
        for when in ("before", "after", "before_valid_seen", "after_valid_seen"):
            assert changed(f"{who}_{when}") == {}
        assert changed(f"{who}_no_reports") == {"report": "none"}
        for rate in (0.05, 0.1, 0.2, 0.4):
            assert changed(f"{who}_text_noise_{rate}") == {"text_noise": rate}
    for severity in range(5):
        name, noise = f"agent_{config.environment.image_noise}_{severity}", {"image_severity": severity}
        assert changed(name) == (noise if severity else {})
        assert changed(f"{name}_no_replanning") == (noise if severity else {}) | fixed
        assert not severity or changed(f"agent_report_noise_{severity}") == {"report_severity": severity}


def test_a_planner_of_this_process_and_the_agent_are_made_as_the_settings_say(tmp_path) -> None:
    asked = ["planner.lora_rank=3", "planner.lora_alpha=5", "planner.lora_targets=[q_proj]", "planner.grounded=true"]
    asked += ["planner.context_tokens=512", "planner.max_answer_tokens=9", "planner.kept_prompts_mib=2"]
    asked += ["model.lora_rank=2", "model.freeze_llm=true", f"planner.examples={EXAMPLES}"]
    config = load_config(EmacPlusConfig, DEMO, [*AGENT, *asked])
    loop = build_loop(config, tmp_path / "loop")
    assert torch.initial_seed() == 7, "a model of a third party draws its untrained weights"
    planner, agent = loop.planner, loop.agent
    assert isinstance(planner, LocalPlanner) and planner is loop.trainer
    lora = planner.model.peft_config["default"]
    assert (lora.r, lora.lora_alpha, set(lora.target_modules)) == (3, 5, {"q_proj"})
    assert (planner.grounded, planner.max_answer_tokens, planner.max_batch, planner._context) == (True, 9, 5, 512)
    assert planner._kept.limit == 2 << 20 and planner.examples == EXAMPLES.read_text()
    assert (agent.model.dpo_beta, agent.max_batch, agent.policy.max_batch) == (0.7, 5, 5)
    # What is untrained is drawn by the seed.
    made = [
        building.local_planner(config.planner, replace(config.run, seed=seed), torch.device("cpu")) for seed in (7, 8)
    ]
    assert [planner.identity == other.identity for other in made] == [True, False]


def test_a_planner_behind_an_endpoint_is_made_as_the_settings_say(tmp_path) -> None:
    asked = ["planner.name=endpoint", "planner.base_url=http://127.0.0.1:9/v1", "planner.temperature=0.5"]
    asked += ["planner.context_tokens=4096", "planner.max_answer_tokens=9", f"planner.examples={EXAMPLES}"]
    config = load_config(EmacPlusConfig, DEMO, [*AGENT, "model.model_type=tiny", "model.lora_rank=0", *asked])
    calls = tmp_path / "shared.jsonl"
    with closing(build_loop(config, tmp_path / "loop", calls=calls)) as loop:
        planner = loop.planner
        assert isinstance(planner, EndpointPlanner) and loop.trainer is None
        assert (planner.temperature, planner.max_answer_tokens) == (0.5, 9) and 3500 < planner._budget < 4096 - 9
        assert planner.examples == EXAMPLES.read_text()
    assert calls.exists() and not (tmp_path / "loop" / "planner_calls.jsonl").exists()
