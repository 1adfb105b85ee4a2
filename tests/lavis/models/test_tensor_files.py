"""Files of torch.save: what is one is read, and a small one cannot take the memory of a large one."""

from __future__ import annotations

import collections
import copy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lavis.models.tensor_files import TensorFileError, load_tensors


def saved(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def repacked(path: Path, **options: Any) -> Path:
    """The archive of torch.save, written again by Python's zip library."""
    with zipfile.ZipFile(path) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


class _Call:
    """Pickled as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_writes_is_read(tmp_path: Path, legacy: bool) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    content = {
        "model": collections.OrderedDict(a=weight, tied=weight, turned=weight.T, bfloat=weight.bfloat16()),
        "parameter": torch.nn.Parameter(weight),
        "numbers": [1, 2.5, None, True, 2**127, "text", (torch.get_rng_state(),)],
    }
    path = saved(tmp_path / "a.pth", content, _use_new_zipfile_serialization=not legacy)
    read = load_tensors(path)
    assert read["numbers"][:6] == content["numbers"][:6]
    for name, value in content["model"].items():
        assert torch.equal(read["model"][name], value)
    assert read["model"]["a"].data_ptr() == read["model"]["tied"].data_ptr()
    if not legacy:
        assert torch.equal(load_tensors(path, mmap=True)["parameter"], weight)
        assert load_tensors(path, mmap=True, map_location="meta")["model"]["a"].is_meta


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = repacked(saved(tmp_path / "a.pth", {"a": torch.zeros(25_000_000)}), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 200_000 and torch.load(path, weights_only=True)["a"].numel() == 25_000_000
    for options in ({}, {"mmap": True}, {"mmap": True, "map_location": "meta"}):
        with pytest.raises(TensorFileError, match="it is compressed, which torch.save never does"):
            load_tensors(path, **options)


def test_a_directory_that_another_reader_may_find_elsewhere_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", {"a": torch.zeros(2)})
    whole = path.read_bytes()
    for data in (whole + b"PK", whole[:-2] + b"\x02\0PK", whole[:28] + b"PK" + whole[28:], whole[:-60] + whole[-50:]):
        path.write_bytes(data)
        with pytest.raises(TensorFileError):
            load_tensors(path)
    path.write_bytes(whole)
    with pytest.raises(TensorFileError, match="its directory is not where torch.save writes it"):
        load_tensors(repacked(path))


def test_entries_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data/0", bytes(100_000))
        for number in range(1, 50):  # the directory says that all blocks are the first one
            archive.filelist.append(copy.copy(archive.filelist[0]))
            archive.filelist[-1].filename = f"a/data/{number}"
    assert path.stat().st_size < 110_000
    with pytest.raises(TensorFileError, match="its entries overlap"):
        load_tensors(path)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(1).expand(10**6, 10**6),
        torch.zeros(1000).as_strided((10**9, 900), (0, 1)),
        [torch.zeros(1000)[: 1000 - n % 2] for n in range(3)] + [torch.zeros(500_000).expand(100, -1)],
    ],
)
def test_tensors_that_claim_more_than_the_file_has_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(TensorFileError, match=r"its tensors claim [\d,]+ bytes, the file has"):
        load_tensors(saved(tmp_path / "a.pth", {"deep": [{"in": value}]}))


def test_one_block_under_many_names_is_refused(tmp_path: Path) -> None:
    block = torch.zeros(100_000)
    with pytest.raises(TensorFileError, match="its tensors claim"):
        load_tensors(saved(tmp_path / "a.pth", {str(number): block[:] for number in range(100)}))


@pytest.mark.parametrize(
    "call",
    [
        (bytearray, (10**10,)),
        (set, ([1],)),
        (torch.Tensor, (10**6,)),
        (torch.sparse_coo_tensor, (torch.zeros(1, 1).long(), torch.zeros(1), (10**9,))),
        (open, ("/tmp/never", "w")),
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_calls_that_weights_do_not_need_are_refused(tmp_path: Path, call: Any, legacy: bool) -> None:
    path = saved(tmp_path / "a.pth", {"a": _Call(*call)}, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(TensorFileError, match=r"it (calls|holds)"):
        load_tensors(path)


def test_lists_within_lists_are_walked_once(tmp_path: Path) -> None:
    inner: list[Any] = [torch.zeros(2)]
    for _ in range(60):
        inner = [inner, inner]
    inner.append(inner)
    assert load_tensors(saved(tmp_path / "a.pth", inner))[2] is not None


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"hello", b"\x80\x02.", b"\x80\x04\x95", bytes(100)])
def test_other_files_are_refused_in_words(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(TensorFileError):
        load_tensors(tmp_path / "a.pth")
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "b.pth")


def test_a_small_file_never_takes_much_memory(tmp_path: Path) -> None:
    """In a process of its own, which may grow by 60 MB."""
    large = saved(tmp_path / "a.pth", {"a": torch.zeros(200_000_000, dtype=torch.uint8)})
    files = [
        repacked(large, compression=zipfile.ZIP_DEFLATED),
        saved(tmp_path / "b.pth", {"a": _Call(bytearray, (3 << 30,))}),
        saved(tmp_path / "c.pth", {"a": torch.zeros(1).expand(1 << 30)}),
    ]  # fmt: skip
    code = (
        "import resource, sys\n"
        "from lavis.models.tensor_files import TensorFileError, load_tensors\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        load_tensors(path)\n        sys.exit(f'{path} was read')\n"
        "    except TensorFileError as error:\n        print(error)\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "sys.exit(f'{grown} KiB' if grown > 60_000 else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
