"""Each example as a reader starts it: a process, whose table says that it played."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT
from tests import warm

EXAMPLES = REPO_ROOT / "examples"
TESTED_ELSEWHERE = {  # against the real libraries
    "grpo_trl": "tests/xrl_alignment/adapters/test_trl.py",
    "inspect_household": "tests/xrl_alignment/adapters/test_inspect.py",
    "verifiers_household": "tests/xrl_alignment/adapters/test_verifiers.py",
}


def solved(name: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Run an example outside the repository; games and solved games of each row in the table that it prints."""
    ended = warm.run([EXAMPLES / name], cwd=folder)
    assert ended.returncode == 0, ended.stderr
    head, *rows = ended.stdout.splitlines()
    assert head.split()[:4] == ["task", "type", "games", "solved"]
    assert not list(folder.iterdir())  # the generated games are deleted at the end
    return {row.split()[0]: (int(row.split()[1]), int(row.split()[2])) for row in rows}


def test_custom_environment(tmp_path: Path) -> None:
    rows = solved("custom_environment.py", tmp_path)
    assert rows == {"pick_and_place_simple": (3, 3), "all": (3, 3)}


def test_custom_expert(tmp_path: Path) -> None:
    rows = solved("custom_expert.py", tmp_path)
    assert rows["pick_and_place_simple"] == (3, 3) and rows["all"] == (18, 3)  # the only type that it knows


def test_custom_policy(tmp_path: Path) -> None:
    games, number = solved("custom_policy.py", tmp_path)["all"]
    assert games == 18 and 0 < number < games


def test_hub_vlm(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from lavis.models.hf_vlm import tiny

    path = tiny.make("qwen2_5_vl", tmp_path / "vlm")
    ended = warm.run([EXAMPLES / "hub_vlm.py", path], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    losses = [float(line.rpartition(" ")[2]) for line in ended.stdout.splitlines()]
    assert len(losses) == 5 and losses[-1] < losses[0]  # three games of six states, in batches of four


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_has_its_test(example: Path) -> None:
    elsewhere = (REPO_ROOT / TESTED_ELSEWHERE.get(example.stem, "none")).is_file()
    assert f"test_{example.stem}" in globals() or elsewhere
