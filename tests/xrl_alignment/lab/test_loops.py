"""`python -m xrl_alignment.loops`: several real loops compared game by game."""

from __future__ import annotations

import json
import shutil

import pytest

from lavis.common.errors import ConfigError, MissingFileError
from lavis.common.files import write_json
from tests.xrl_alignment.planning.test_building import DEMO, SMALL
from xrl_alignment.lab.loops import ACTORS, compare, main, read_loop, render
from xrl_alignment.planning import building
from xrl_alignment.planning.building import run_emac_plus
from xrl_alignment.show.report.__main__ import main as report
from xrl_alignment.show.report.loops import find_loops, loop_parts
from xrl_alignment.show.report.run_data import ReportError

MORE = ("run.num_eval=3", "run.ablations=[no_planner_learning,step_teacher]", "run.robustness=true")


@pytest.fixture(scope="module")
def loops(tmp_path_factory, household_data):
    folder = tmp_path_factory.mktemp("loops")
    given = [*SMALL, *MORE, f"environment.data={household_data}", "run.num_envs=2"]
    with pytest.MonkeyPatch.context() as patch:  # one rate of noise tells as much here as four
        patch.setattr(building, "_TEXT_NOISE", (0.4,))
        return [run_emac_plus(DEMO, [*given, f"run.output_dir={folder / str(s)}", f"run.seed={s}"]) for s in (1, 2)]


def test_the_rows_are_those_of_the_loops_own_files(loops, monkeypatch, capsys) -> None:
    rows = compare(loops)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in loops]
    for who in ACTORS:
        own = [summary[f"{who}_after"]["success"] for summary in summaries]
        assert rows[f"{who}_after"]["by_seed"] == pytest.approx(own) and rows[f"{who}_after"]["games"] == 3
        assert rows[f"{who}_after"]["base"] == f"{who}_before" and "base" not in rows[f"{who}_before"]
        for name in ("no_planner_learning, trained anew", "step_teacher, trained anew", "text_noise_0.4"):
            assert rows[f"{who}_{name}"]["base"] == f"{who}_after"
    spent = [summary["step_teacher"]["training_tokens"] for summary in summaries]
    assert rows["agent_step_teacher, trained anew"]["training_tokens"] == sum(spent) / 2 > 0
    assert rows["agent_before"]["training_tokens"] is None
    assert rows["planner_after"]["training_tokens"] == sum(each["training_tokens"] for each in summaries) / 2

    monkeypatch.setattr("sys.argv", ["loops", *map(str, loops)])
    main()
    printed = capsys.readouterr().out
    assert printed.strip() == render(rows) and "| no_planner_learning, trained anew, 3 games | " in printed


def test_the_report_shows_a_loop_and_its_ablations(copies, capsys) -> None:
    loop = copies[0]
    report([str(loop)])
    assert capsys.readouterr().out == f"{loop / 'report.html'}\n"
    page = (loop / "report.html").read_text(encoding="utf-8")
    after = json.loads((loop / "evaluations" / "agent_after.json").read_text())
    records = [json.loads(path.read_text()) for path in sorted(loop.glob("round_*/game_*.json"))]
    for expected in (
        f"1: EMAC+&#39;s loop, in which planner and agent learn from their games; {len(records)} games in 1 round.",
        f"<td>agent_after</td><td>{', '.join(f'{why}: {n}' for why, n in after['replans'].items()) or '–'}</td>",
        "Planning: ablations/no_planner_learning",
        "Planning: ablations/step_teacher",
        '<td>after: planner, agent</td><td>held-out</td><td class="n">3</td>',
        "Settings: 1</h2>",
    ):
        assert expected in page, expected
    assert "Missing beside these figures" not in page and "summary.json is missing" not in page

    (parts,) = [loop_parts(name, path) for name, path in find_loops(copies[1]).items() if path == copies[1]]
    assert [row[2] for row in parts.rounds.rows] == ["2"] and parts.games
    (loop / "summary.json").unlink()
    for path in loop.glob("evaluations/*_after.json"):
        path.unlink()
    report([str(loop)])  # as a loop that still runs
    page = (loop / "report.html").read_text(encoding="utf-8")
    assert "summary.json is missing: the loop has not ended" in page and "in 1 round so far." in page
    record = next(loop.glob("round_000/game_*.json"))
    record.write_text(json.dumps({"result": {}, "calls": [{}]}))
    with pytest.raises(ReportError, match=f"{record.name} is damaged: KeyError 'game'"):
        report([str(loop)])
    record.unlink()
    (loop / "evaluations" / "agent_before.json").write_text("[1]")
    with pytest.raises(ReportError, match="a file in .*evaluations is damaged: AttributeError"):
        report([str(loop)])


@pytest.fixture
def copies(loops, tmp_path):
    return [shutil.copytree(folder, tmp_path / folder.name) for folder in loops]


def test_a_difference_is_paired_by_loop_and_game(copies) -> None:
    for folder, won in zip(copies, ([1, 1, 0], [1, 0, 0]), strict=True):
        for name, values in (("agent_before", [0, 0, 0]), ("agent_after", won)):
            path = folder / "evaluations" / f"{name}.json"
            found = json.loads(path.read_text())
            for one, value in zip(found["episodes"][0], values, strict=True):
                one["won"] = bool(value)
            write_json(path, found)
    rows = compare(copies)
    low, high = rows["agent_before"]["interval"]
    assert low == 0 < high, "no draw of the bootstrap differs, which is no reason for a width of zero"
    row = rows["agent_after"]
    assert row["success"] == row["difference"]["difference"] == 0.5 and row["by_seed"] == pytest.approx([2 / 3, 1 / 3])
    low, high = row["difference"]["interval"]
    assert 0 <= low < 0.5 < high <= 1


def test_what_cannot_be_compared_is_refused(copies, tmp_path) -> None:
    with pytest.raises(ConfigError, match="has the same seed as"):
        compare([copies[0], copies[0]])
    third = shutil.copytree(copies[1], tmp_path / "third")
    with pytest.raises(ConfigError, match=rf"third has the same seed as {copies[1]}"):
        compare([*copies, third])
    with pytest.raises(MissingFileError, match="has no summary.json"):
        compare([tmp_path])
    text = (copies[1] / "config.yaml").read_text()
    (copies[1] / "config.yaml").write_text(text.replace("max_steps: 2", "max_steps: 3"))
    with pytest.raises(ConfigError, match=r"has other settings than .*: run.max_steps: 2 → 3"):
        compare(copies)
    path = copies[0] / "evaluations" / "agent_after.json"
    (copies[1] / "config.yaml").write_text(text)
    found = json.loads(path.read_text())
    found["episodes"][0][0]["game"] = "household_heldout/another"
    write_json(path, found)
    with pytest.raises(ConfigError, match="agent_after is of other games than that of"):
        compare(copies)
    write_json(path, {"success": 1.0})
    with pytest.raises(ConfigError, match="is of an older version"):
        read_loop(copies[0])
