"""The doctor's lines, against real files, ports and processes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.split_inference.servers import alive, wait_until
from xrl_alignment import doctor


def test_python_too_old_is_a_fail():
    assert doctor.check_python((3, 9, 1)).level == "fail"
    assert doctor.check_python((3, 12, 0)).level == "ok"


def test_libraries_name_what_is_missing():
    findings = list(doctor.check_libraries({"numpy": "numpy", "no_such_module_here": "no-such-dist"}))
    assert [f.level for f in findings] == ["fail", "ok"]
    assert "no-such-dist" in str(findings[0]) and "numpy " in findings[1].detail


def test_device_line_never_fails_here():
    assert doctor.check_device().level in ("ok", "warn")


def test_weights(tmp_path):
    assert doctor.check_weights(str(tmp_path / "nowhere")).level == "fail"
    assert "no config.json" in doctor.check_weights(str(tmp_path)).detail
    (tmp_path / "config.json").write_text("{}")
    assert "holds no weights" in doctor.check_weights(str(tmp_path)).detail
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    assert doctor.check_weights(str(tmp_path)).level == "ok"
    empty = tmp_path / "emma.pth"
    empty.touch()
    assert "is empty" in doctor.check_weights(str(empty)).detail
    empty.write_bytes(b"x")
    assert doctor.check_weights(str(empty)).level == "ok"


def test_weights_by_hub_id_not_in_the_cache_are_a_warning(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert doctor.check_weights("nobody/no-such-model-1b").level == "warn"
    assert doctor.check_weights("output/emma.pth").level == "fail"  # a file that is not there, no hub id


def test_config_weights_are_checked_and_a_wrong_config_is_one_line(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_text("model:\n  arch: blip2_emac\n  model_type: tiny\n  pretrained: /no/such/file.pth\n")
    (finding,) = doctor.check_config_weights(str(good))
    assert finding.level == "fail" and finding.what == "model.pretrained"
    bad = tmp_path / "bad.yaml"
    bad.write_text("run:\n  num_rouns: 3\n")
    (finding,) = doctor.check_config_weights(str(bad))
    assert finding.level == "fail" and "num_rouns" in finding.detail


def test_games_missing_and_found(tmp_path, household_data, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctor.check_games().level == "warn"
    asked = doctor.check_games(str(tmp_path))
    assert asked.level == "fail" and "alfworld-download" in asked.advice
    found = doctor.check_games(str(household_data))
    assert found.level == "ok" and "household_heldout 6" in found.detail


def test_disk(tmp_path):
    assert doctor.check_disk(tmp_path, needed=1).level == "ok"
    assert doctor.check_disk(tmp_path, needed=1 << 70).level == "fail"


def test_port_free_and_held():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        held = doctor.check_port(port)
        assert held.level == "fail" and str(port) in held.what
        if Path("/proc/net/tcp").exists():
            assert f"process {os.getpid()}" in held.detail
    assert doctor.check_port(port).level == "ok"


def test_port_out_of_range_is_a_fail():
    assert doctor.check_port(70000).level == "fail"


def test_keys_are_never_shown():
    (finding,) = doctor.check_keys({"A_KEY": "sesame-42"}, names=("A_KEY",))
    assert "sesame" not in str(finding) and finding.detail == "set"
    (finding,) = doctor.check_keys({}, names=("A_KEY",))
    assert "not set" in finding.detail


@pytest.fixture
def project() -> dict:
    """The package's own metadata."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return tomllib.loads((Path(doctor.__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]


def test_extras_named_are_those_of_the_package(project):
    assert {extra for extra, _ in doctor.EXTRAS.values()} <= set(project["optional-dependencies"])


def test_libraries_named_are_those_of_the_package(project):
    needed = " ".join(project["dependencies"])
    assert all(distribution in needed for distribution in doctor.LIBRARIES.values())


def test_simulator_names_what_is_missing():
    assert doctor.check_simulator(("json",)).level == "ok"
    finding = doctor.check_simulator(("json", "no_such_module_here"))
    assert finding.level == "fail" and "no_such_module_here" in finding.detail and "[thor]" in finding.advice


def test_object_poses_are_looked_for(household_data, tmp_path, alfworld_data):
    assert doctor.check_poses(str(household_data)).level == "fail"  # generated games have none
    assert doctor.check_poses(str(tmp_path)).level == "fail"
    assert doctor.check_poses(str(alfworld_data)).level == "ok"


def test_display(tmp_path):
    assert doctor.check_display({}).level == "fail"
    assert doctor.check_display({"DISPLAY": ":7"}, tmp_path).level == "fail"
    (tmp_path / "X7").touch()
    assert doctor.check_display({"DISPLAY": ":7.0"}, tmp_path).level == "ok"
    assert doctor.check_display({"DISPLAY": "far:1"}, tmp_path).level == "ok"


def test_unity_log_tells_its_last_errors(tmp_path):
    assert doctor.check_unity_log(tmp_path).level == "ok"
    folder = tmp_path / ".config/unity3d/Allen Institute for Artificial Intelligence/AI2-THOR"
    folder.mkdir(parents=True)
    log = folder / "Player.log"
    log.write_text("Initialize engine\nall well\n")
    assert "no errors" in doctor.check_unity_log(tmp_path).detail
    log.write_text("x\n" * 200000 + "Unable to open display\nok\n")
    finding = doctor.check_unity_log(tmp_path)
    assert finding.level == "warn" and "Unable to open display" in finding.detail and str(log) in finding.detail


def test_left_over_pipes_are_reported_and_stay(tmp_path):
    assert doctor.check_pipes(tmp_path / "none").level == "ok"
    os.mkfifo(tmp_path / "server.pipe")
    finding = doctor.check_pipes(tmp_path)
    assert finding.level == "warn" and "1 in" in finding.detail
    assert (tmp_path / "server.pipe").exists()


def test_frame_rendered_crashed_and_hung():
    good = doctor.check_frame(120, 'print("frame", 300, 300, 3, 200)')
    assert good.level == "ok" and "300 x 300" in good.detail
    assert "one colour" in doctor.check_frame(120, 'print("frame", 300, 300, 3, 0)').detail
    crashed = doctor.check_frame(120, 'raise SystemExit("cannot open display")')
    assert crashed.level == "fail" and "cannot open display" in crashed.detail


def test_hung_frame_is_stopped_with_its_children(tmp_path):
    mark = tmp_path / "child"
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(3600)"
    )
    finding = doctor.check_frame(3, program)  # a child that lived on would hold its output open, and this test up
    assert finding.level == "fail" and "none within" in finding.detail
    if mark.exists() and mark.read_text() and Path("/proc").is_dir():
        wait_until(lambda: not alive(int(mark.read_text())))


def test_main_exit_code_and_lines(capsys, household_data):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert doctor.main(["--data", str(household_data), "--port", port]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines[:-1])
    assert lines[-1].startswith("0 to correct")
    assert doctor.main(["--data", str(household_data), "--port", port, "--model", "/no/such/folder"]) == 1
    assert "fail  weights: /no/such/folder does not exist" in capsys.readouterr().out


def test_unknown_argument_is_refused():
    with pytest.raises(SystemExit) as stop:
        doctor.main(["--bogus"])
    assert stop.value.code == 2


def test_empty_split_is_passed_over(tmp_path, household_data):
    (tmp_path / "json_2.1.1").mkdir()
    for split in household_data.glob("json_2.1.1/*"):
        (tmp_path / "json_2.1.1" / split.name).symlink_to(split)
    (tmp_path / "json_2.1.1" / "valid_unseen").mkdir()
    finding = doctor.check_games(str(tmp_path))
    assert finding.level == "ok" and "valid_unseen" not in finding.detail
