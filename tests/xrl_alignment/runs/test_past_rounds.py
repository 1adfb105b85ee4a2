"""Memories for a round that has ended, written anew."""

import json

import pytest
import yaml

from benchmarks._endpoint import FakeEndpoint
from generate_reflections import main
from lavis.common.errors import ConfigError
from xrl_alignment.common.errors import EndpointFault, PromptTooLong
from xrl_alignment.runs.directory import RunDirectory, RunDirectoryError
from xrl_alignment.runs.past_rounds import finished_rounds, reflect_on_round


class Numbering:
    """A reflector whose texts tell how many memories it saw."""

    name = "numbering"

    def reflect(self, trace, memories):
        return f"after {len(memories)}"


@pytest.fixture
def ended(make_run, scripted):
    """The path of a run of two rounds in which every game failed, with memories by rule."""
    run = make_run(policy=scripted("look"), train=False, num_rounds=2, max_steps=1)
    run.play()
    (run.directory.path / "config.yaml").write_text(yaml.safe_dump({"run": {"num_rounds": 2}}))
    return run.directory.path


def texts(memories):
    return sorted(map(tuple, memories.values()))


def test_the_last_rounds_memories_are_replaced_and_twice_is_once(ended):
    directory = RunDirectory(ended)
    before = directory.memories()[1]
    assert finished_rounds(ended) == [0, 1]
    after = reflect_on_round(directory, 1, Numbering()).memories
    assert all(len(after[game]) == 2 and after[game][0] == before[game][0] for game in before)
    assert {memories[-1] for memories in after.values()} == {"after 1"}
    assert directory.memories() == (2, after) == (2, reflect_on_round(directory, 1, Numbering()).memories)
    directory.close()


def test_an_earlier_rounds_memories_do_not_touch_what_a_resume_starts_with(ended):
    directory = RunDirectory(ended)
    before = directory.memories()
    played = (directory.results / "env_results_trial_0.json").read_text()
    made = reflect_on_round(directory, 0, Numbering())
    assert texts(made.memories) == [("after 0",)] * 2 and not made.used
    assert directory.memories() == before
    # The record of what the next round was played with stays; the new memories lie beside it.
    assert (directory.results / "env_results_trial_0.json").read_text() == played
    assert json.loads(made.path.read_text()) != json.loads(played)
    with pytest.raises(RunDirectoryError, match="round 7 of .* has not ended; rounds that have ended: 0, 1"):
        reflect_on_round(directory, 7, Numbering())
    directory.close()


def test_memories_that_an_older_version_stored_as_they_came_are_cleaned(ended):
    path = ended / "logging_results" / "env_results_trial_0.json"
    results = json.loads(path.read_text())
    for result in results.values():
        result["memory"] = ["look \ud800"]
    path.write_text(json.dumps(results))
    directory = RunDirectory(ended)
    after = reflect_on_round(directory, 1, Numbering()).memories
    assert all(memories == ["look ?", "after 1"] for memories in after.values())
    directory.close()


@pytest.mark.parametrize(
    "content", [[], {"env_0": 1}, {"env_0": {"game": "g"}}, {"env_0": {"game": "g", "memory": "m"}}]
)
def test_damaged_results_of_a_round_are_one_line(ended, content):
    (ended / "logging_results" / "env_results_trial_0.json").write_text(json.dumps(content))
    directory = RunDirectory(ended)
    before = directory.memories()
    with pytest.raises(RunDirectoryError, match="env_results_trial_0.json is damaged"):
        reflect_on_round(directory, 1, Numbering())
    assert directory.memories() == before
    directory.close()


def test_a_trace_that_cannot_be_read_costs_no_other_game_its_memory(ended):
    class Picky(Numbering):
        def reflect(self, trace, memories):
            if trace.game_id == unreadable:
                raise PromptTooLong("too long")
            return super().reflect(trace, memories)

    directory = RunDirectory(ended)
    unreadable, *others = reflect_on_round(directory, 1, Numbering()).memories
    after = reflect_on_round(directory, 1, Picky()).memories
    assert others and "after 1" not in after[unreadable] and all("after 1" in after[game] for game in others)
    directory.close()


def test_rules_need_no_key_whoever_labels(ended, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings = {"run": {"num_rounds": 2}, "expert": {"name": "openai", "model": "gpt"}}
    (ended / "config.yaml").write_text(yaml.safe_dump(settings))
    main([str(ended), "--round", "0", "--options", "reflexion.reflector=rule"])
    said = capsys.readouterr().out
    assert "the newest by rule" in said and "the run does not use these" in said


def test_a_run_without_memories_gets_none_unless_asked(ended):
    (ended / "config.yaml").write_text(yaml.safe_dump({"run": {"num_rounds": 2}, "reflexion": {"enabled": False}}))
    before = (ended / "logging_results" / "env_results_trial_1.json").read_text()
    with pytest.raises(ConfigError, match="is a run without memories .*: to give it some .* reflexion.enabled=true"):
        main([str(ended), "--options", "reflexion.reflector=rule"])
    assert (ended / "logging_results" / "env_results_trial_1.json").read_text() == before
    main([str(ended), "--options", "reflexion.reflector=rule", "reflexion.enabled=true"])


def test_a_failing_reflector_changes_nothing(ended):
    class Failing:
        name = "failing"

        def reflect(self, trace, memories):
            raise EndpointFault("down")

    directory = RunDirectory(ended)
    before = directory.memories(), (directory.results / "env_results_trial_1.json").read_text()
    with pytest.raises(EndpointFault, match="down"):
        reflect_on_round(directory, 1, Failing())
    assert before == (directory.memories(), (directory.results / "env_results_trial_1.json").read_text())
    directory.close()


def test_the_program_asks_a_language_model_and_pays_once(ended, tmp_path, capsys):
    with FakeEndpoint(lambda prompt: "I will look in the fridge.") as server:
        options = ["reflexion.reflector=llm", f"expert.base_url={server.url}", "expert.model=m"]
        options.append(f"expert.cache={tmp_path / 'answers.sqlite'}")
        for _ in range(2):
            main([str(ended), "--options", *options])
        assert len(server.requests) == 2
        prompt = server.requests[0]["messages"][-1]["content"]
        assert "STATUS: FAIL\n\nPlans from past attempts:\nTrial #0: (by rule)" in prompt and prompt.endswith(
            "New plan:"
        )
    output = capsys.readouterr().out
    assert "round 1: 2 games have memories, the newest by llm" in output and "EXPERT: calls 2" in output
    directory = RunDirectory(ended)
    assert all(memories[-1] == "I will look in the fridge." for memories in directory.memories()[1].values())
    directory.close()


def test_the_program_without_a_finished_round(tmp_path):
    (tmp_path / "config.yaml").write_text("run: {num_rounds: 2}")
    with pytest.raises(RunDirectoryError, match="no round of .* has ended yet"):
        main([str(tmp_path)])
