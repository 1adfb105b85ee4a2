"""Checkpoints: what is in them, that a crash leaves the old one, and what is said of files that do not fit."""

import errno
import io
import resource
import zipfile

import pytest
import torch

from lavis.common.files import write_atomically
from lavis.models.blip2_models.emac_config import PARTS
from lavis.models.frozen_base import check_base
from xrl_alignment.builders.student import load_student
from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint, restore_model, save_checkpoint

FROZEN_LLM = {"freeze_llm": True, "freeze_vit": True, "freeze_qformer": True, "allow_random": list(PARTS)}


def student(**settings):
    return load_student(settings, torch.device("cpu"))[0]


@pytest.fixture(scope="module")
def model():
    return student(**FROZEN_LLM)


@pytest.fixture
def path(model, tmp_path):
    return save_checkpoint(tmp_path / "emma_checkpoint_0.pth", model=model, round=3, training_step=7, episodes=5)


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def fails(file):
        file.write(b"half of the n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fails)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_named_and_leaves_the_old_one(model, path):
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="emma_checkpoint_0.pth could not be written"):
            save_checkpoint(path, model=model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_an_interrupt_while_writing_is_no_error_of_the_disk(model, path, monkeypatch):
    class Interrupted(io.BytesIO):
        def write(self, data):
            raise KeyboardInterrupt

    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: save(content, Interrupted()))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, model=model)
    assert list(path.parent.iterdir()) == [path] and load_checkpoint(path)["round"] == 3


def test_only_what_trains_is_stored(model, path):
    content = load_checkpoint(path)
    assert set(content["model"]) == {"llm_proj.weight", "llm_proj.bias"}
    assert (content["round"], content["training_step"], content["episodes"]) == (3, 7, 5)
    assert path.stat().st_size < 100_000


def test_weights_and_optimiser_come_back(model, tmp_path):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    path = save_checkpoint(
        tmp_path / "c.pth", model=model, optimizer=optimizer, random={"torch": torch.get_rng_state()}
    )
    other = student(**FROZEN_LLM)
    restore_model(other, load_checkpoint(path), path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    fresh = torch.optim.AdamW([p for p in other.parameters() if p.requires_grad])
    fresh.load_state_dict(load_checkpoint(path)["optimizer"])
    assert fresh.state_dict()["state"][0]["step"] == 1


@pytest.mark.parametrize("cut", [0, 100, 0.5, -10])
def test_a_truncated_file_is_named(path, cut):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut) if isinstance(cut, float) else cut])
    with pytest.raises(CheckpointError, match=f"{path} cannot be read as a checkpoint"):
        load_checkpoint(path)


def test_another_base_is_named_by_its_files(tmp_path):
    files = {"model_type": "vicuna7b", "llm_model": "vicuna-7b", "max_txt_len": 1024}
    path = save_checkpoint(tmp_path / "c.pth", model=student(**FROZEN_LLM), config={"model": files})
    message = r"trained on the frozen base \w{12} \(model.model_type=vicuna7b model.llm_model=vicuna-7b\), this model's"
    with pytest.raises(CheckpointError, match=message):
        restore_model(student(**FROZEN_LLM, init_seed=3), load_checkpoint(path), path)


@pytest.mark.parametrize(
    "stored", [[], "x", {"model_type": [1], "llm_model": {"a": 1}, "base_model": "\x1b[2J"}, None, 7]
)
def test_what_a_damaged_configuration_says_of_the_base_is_left_out(tmp_path, stored):
    path = save_checkpoint(tmp_path / "c.pth", model=student(**FROZEN_LLM), config={"model": stored})
    with pytest.raises(CheckpointError, match=r"trained on the frozen base \w{12}, this model's"):
        restore_model(student(**FROZEN_LLM, init_seed=3), load_checkpoint(path), path)


def test_a_compressed_checkpoint_is_refused(path):
    with zipfile.ZipFile(path) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint: it is compressed"):
        load_checkpoint(path)


def test_a_readme_as_checkpoint_is_told_what_it_is(tmp_path):
    (tmp_path / "README.md").write_text("# EMAC+\n" * 30)
    with pytest.raises(CheckpointError, match="README.md cannot be read as a checkpoint: it is a text: name a file of"):
        load_checkpoint(tmp_path / "README.md")


def test_other_files_are_named(path, tmp_path):
    torch.save({"model": {}}, path)
    with pytest.raises(CheckpointError, match="is not an EMAC. run checkpoint; it holds: model"):
        load_checkpoint(path)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="it holds: list"):
        load_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "nothing.pth")
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load_checkpoint(tmp_path)


def test_code_in_a_file_is_not_run(path, tmp_path):
    class Surprise:
        def __reduce__(self):
            return open, (str(tmp_path / "surprise"), "w")

    torch.save(Surprise(), path)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    assert not (tmp_path / "surprise").exists()


def test_a_newer_format_is_refused(path):
    content = torch.load(path, weights_only=True) | {"version": 99}
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="format version 99, this program reads up to 1"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", {}, "version is dict, not int"),
        ("model", None, "model is NoneType, not dict"),
        ("model", {"a": 1}, "weight a is int"),
        ("base_hash", {}, "base_hash is dict, not str"),
        ("episodes", "5", "episodes is str, not int"),
        ("config", [], "config is list, not dict"),
        ("model", {3: torch.zeros(1)}, "weight named by a int is Tensor"),
    ],
)
def test_a_checkpoint_of_other_types_is_refused(path, name, value, reason):
    torch.save(torch.load(path, weights_only=True) | {name: value}, path)
    with pytest.raises(CheckpointError, match=f"is damaged: {reason}"):
        load_checkpoint(path)


def test_a_checkpoint_without_its_base_is_refused(path):
    content = torch.load(path, weights_only=True)
    del content["base_hash"]
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="is damaged: base_hash is missing, not str"):
        load_checkpoint(path)


def test_another_frozen_base_is_refused_and_both_are_named(model, path):
    other = student(**FROZEN_LLM, init_seed=1)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    for refuse in (lambda: restore_model(other, load_checkpoint(path), path), lambda: check_base(other, path)):
        with pytest.raises(CheckpointError, match=f"{model.base_hash()[:12]}.*{other.base_hash()[:12]}"):
            refuse()
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    check_base(model, path)


def test_weights_of_another_shape_are_refused(path, model):
    content = load_checkpoint(path)
    content["model"]["llm_proj.bias"] = torch.zeros(3)
    with pytest.raises(CheckpointError, match="does not fit this model: .*llm_proj.bias is .3,. in the file"):
        restore_model(model, content, path)


def test_what_is_not_finite_never_replaces_a_good_file(tmp_path):
    model = student(**FROZEN_LLM)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    path = save_checkpoint(tmp_path / "trainer.pth", model=model, optimizer=optimizer)
    before = path.read_bytes()
    weight = model.llm_proj.weight
    kept = weight.data[0, 0].item()
    weight.data[0, 0] = float("inf")
    with pytest.raises(CheckpointError, match="trainer.pth was not written: llm_proj.weight holds values that are not"):
        save_checkpoint(path, model=model, optimizer=optimizer)
    weight.data[0, 0] = kept
    weight.grad = torch.full_like(weight, 1e30)  # its square is infinite
    optimizer.step()
    with pytest.raises(CheckpointError, match="not written: the optimiser holds values"):
        save_checkpoint(path, model=model, optimizer=optimizer)
    assert path.read_bytes() == before
