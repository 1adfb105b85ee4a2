"""`python -m xrl_alignment.environments.household`."""

import pytest

from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import find_games
from xrl_alignment.environments.household.__main__ import main


def test_program(tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--num-train", "6", "--num-heldout", "6", "--max-receptacles", "24"]) == 0
    assert "12 of 12 games" in capsys.readouterr().out
    assert len(find_games("household_heldout", tmp_path)) == 6
    with pytest.raises(SystemExit) as end:
        run_program(lambda: main(["--out", str(tmp_path), "--max-receptacles", "2"]))
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: max_receptacles")
