"""The notebooks as Jupyter runs them, and as they lie in the repository: without outputs, with one first cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from lavis.common.paths import REPO_ROOT

NOTEBOOKS = sorted((REPO_ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(content)
    kinds = ("display_name", "language", "name")
    assert set(content["metadata"]) == {"kernelspec", "language_info"}  # no machine, no editor
    assert set(content["metadata"]["kernelspec"]) == set(kinds) and len(content["metadata"]["language_info"]) == 1
    for cell in content["cells"]:
        assert not cell["metadata"] and not cell.get("outputs") and cell.get("execution_count") is None, cell["source"]


def test_all_begin_with_the_same_cell_and_lead_to_the_next() -> None:
    texts = [json.loads(path.read_text(encoding="utf-8"))["cells"] for path in NOTEBOOKS]
    first = {"".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"]) for cells in texts}
    assert len(NOTEBOOKS) == 4 and len(first) == 1
    after = [re.findall(r"\]\(([\w.]+\.ipynb)\)", json.dumps(cells)) for cells in texts]
    assert after == [[path.name] for path in NOTEBOOKS[1:]] + [[]]


# The first, which everybody tries, takes twelve seconds; the others up to three minutes each on two idle cores.
@pytest.mark.timeout(3600)  # slow tests may run beside other work
@pytest.mark.parametrize(
    "path",
    [NOTEBOOKS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS[1:])],
    ids=lambda p: p.stem,
)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell without an error; their assertions say that training helps and experts differ."""
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where they write
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=3500, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code" and "print(" in cell.source)
