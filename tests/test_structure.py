"""The structure of the sources stays easy to search: few rooms, short modules, tests beside what they test.

Which room may import which is checked elsewhere: by the contracts of `lint-imports` in pyproject.toml.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT

PACKAGES = ("alfworld_native", "lavis", "xrl_alignment", "policy_server", "split_inference")
MAX_ROOMS = 14  # folders and modules directly in xrl_alignment/
MAX_LINES = 450
LONG_MODULES = {"split_inference/alfworld_server.py"}  # one file on purpose: it is copied to machines with Python 3.6
# Tests of several modules at once. Every other test file is named after the module that it tests.
TESTS_OF_SEVERAL_MODULES = {
    "lavis/test_conformance.py": "the published LAVIS wheel and this package give the same values",
    "lavis/models/test_golden.py": "the whole model gives the original's recorded numbers",
    "lavis/models/blip2_models/test_bad_input.py": "what the whole model says to wrong input",
    "lavis/models/fast_llm/test_interface.py": "both backends keep one interface",
    "policy_server/test_deployment.py": "the container file and the systemd unit",
    "policy_server/web/test_ui.py": "the page, which is no Python",
    "xrl_alignment/dagger/test_faults.py": "whatever a client sends, it ends its episode and never the run",
    "xrl_alignment/dagger/test_labels.py": "missing labels, from the client to the end of the run",
    "xrl_alignment/show/dashboard/test_page.py": "the page, which is no Python",
    "xrl_alignment/utils/test_emma_program.py": "the calls of EMMA's program, to the end of a round",
    "lavis/test_lavis_contract.py": "models, datasets and tasks of third parties, written to LAVIS's tutorials",
    "xrl_alignment/show/play/test_page.py": "the page of a game and a recording, which are no Python",
    "xrl_alignment/test_information.py": "the facts of docs/information.md",
    "xrl_alignment/agents/experts/llm/test_served_model.py": "the LLM expert asks a real server",
    "xrl_alignment/planning/test_made_as_set.py": "each setting of EMAC+'s loop reaches what it is for",
}


def modules(package: str) -> list[Path]:
    """Every Python file of a package, relative to the repository."""
    return sorted(path.relative_to(REPO_ROOT) for path in (REPO_ROOT / package).rglob("*.py"))


def test_the_first_view_is_small() -> None:
    boxes = {path.parts[1].removesuffix(".py") for path in modules("xrl_alignment")} - {"__init__"}
    assert len(boxes) <= MAX_ROOMS


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_is_short(package: str) -> None:
    lines = {path.as_posix(): (REPO_ROOT / path).read_text(encoding="utf-8").count("\n") for path in modules(package)}
    assert {name: n for name, n in lines.items() if n > MAX_LINES and name not in LONG_MODULES} == {}


@pytest.mark.parametrize("package", ["lavis", "xrl_alignment"])
def test_a_program_ends_in_run_program(package: str) -> None:
    """Else Ctrl-C and a full disk end in a traceback."""
    assert [path for path in modules(package) if "sys.exit(main())" in (REPO_ROOT / path).read_text("utf-8")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_tests_mirror_the_sources(package: str) -> None:
    lost = []
    for path in sorted((REPO_ROOT / "tests" / package).rglob("test_*.py")):
        test = path.relative_to(REPO_ROOT / "tests")
        subject = test.stem.removeprefix("test_")
        mirrored = any((REPO_ROOT / test.with_name(name)).is_file() for name in (f"{subject}.py", f"__{subject}__.py"))
        if not mirrored and test.as_posix() not in TESTS_OF_SEVERAL_MODULES:
            lost.append(test.as_posix())
    assert lost == []


@pytest.mark.parametrize("package", PACKAGES)
def test_code_in_a_models_folder_never_runs(package: str) -> None:
    """Without the argument Transformers asks whoever sits at the terminal, and runs the folder's code at a "y"."""
    asking = []
    for path in modules(package):
        for node in ast.walk(ast.parse((REPO_ROOT / path).read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained")):
                continue
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if ast.unparse(node.func).startswith(("Auto", "kind")) and given.get("trust_remote_code") != "False":
                asking.append(f"{path}:{node.lineno}")
    assert asking == []
