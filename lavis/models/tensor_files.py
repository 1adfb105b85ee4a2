"""Reads files of `torch.save`: no code of theirs runs, and they take no more memory than a few times their own size.

`torch.load(weights_only=True)` alone runs no code, but a small file can fill the memory: torch unpacks compressed
entries (13 MiB of zeros become 3.4 GiB), a call of `bytearray(10**11)` is allowed, and a tensor of one number can claim
10^12 elements by a stride of 0, which the first operation on it makes real. `torch.save` writes none of these.
"""

from __future__ import annotations

import io
import os
import pickletools
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lavis.common.errors import EmacError, first_sentence

# Tied weights and a reference that shares the policy's are several tensors of one stored block.
MOST_SHARED = 4
_SLACK = 1 << 20  # bytes, for the smallest files
# What a file may call: `torch.save` writes no other functions for tensors in lists and dictionaries.
_FUNCTIONS = {
    "collections OrderedDict",
    "collections Counter",
    "torch._utils _rebuild_meta_tensor_no_storage",  # shapes without values: they take no memory
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch.storage TypedStorage",
    "torch.storage UntypedStorage",
}
_LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages: the form before torch 1.6
# Ends of a zip file: the zip64 record (offset of the directory), its locator (offset of the record), the end record.
_END = struct.Struct("<4s44xQ4s4xQ4x4s16xH")


class TensorFileError(EmacError, ValueError):
    """A file that `torch.save` did not write, or that would take more memory than it may; the text says why."""


def load_tensors(path: Path | str, *, map_location: str = "cpu", mmap: bool = False) -> Any:
    """The content of a file of `torch.save`: tensors, numbers and texts in lists and dictionaries.

    With `mmap` a tensor is read when it is used; `map_location="meta"` gives shapes only. Raises TensorFileError for
    any other file, and OSError if it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            # What torch would read and should not, before torch reads it: functions that are called while a file is
            # unpickled, and archives that unpack to any size. torch tells the two forms apart by these bytes, too.
            is_archive = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            if is_archive:
                _check_archive(file)
            else:
                for _ in range(_LEGACY_PICKLES):
                    _check_calls(file)
            content = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
        except (EmacError, OSError):
            raise
        except Exception as error:  # torch, pickle and zip raise many kinds for a file that is cut off or foreign
            raise TensorFileError(first_sentence(error)) from error
    size, claimed = os.path.getsize(path), 0
    for tensor in _tensors(content):
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
            raise TensorFileError("it holds a tensor of another kind than plain ones")
        if tensor.is_meta and map_location != "meta":
            raise TensorFileError("it holds the shape of a tensor without its values")
        # What was asked for as shapes only takes no memory, whatever it claims.
        claimed += 0 if tensor.is_meta else tensor.numel() * tensor.element_size()
    if claimed > MOST_SHARED * size + _SLACK:
        raise TensorFileError(f"its tensors claim {claimed:,} bytes, the file has {size:,}")
    return content


def _check_archive(file: BinaryIO) -> None:
    """TensorFileError for a zip file with compressed or overlapping entries, or with calls that may not be made.

    torch reads the archive by another library, so there must be one way only to read it: the directory stands right
    before the end records, and these are the file's last bytes.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(one.compress_type != zipfile.ZIP_STORED or one.compress_size != one.file_size for one in entries):
            raise TensorFileError("it is compressed, which torch.save never does: it may be of any size when unpacked")
        size = file.seek(0, os.SEEK_END)
        if sum(one.file_size for one in entries) > size:
            raise TensorFileError("its entries overlap: it may be of any size when unpacked")
        file.seek(max(size - _END.size, 0))
        end = file.read()
        record, start, locator, at, last, comment = _END.unpack(end) if len(end) == _END.size else (b"", *[0] * 5)
        marks = (record, locator, last) == (b"PK\x06\x06", b"PK\x06\x07", b"PK\x05\x06")
        if not marks or comment or at != size - _END.size or start != archive.start_dir:
            raise TensorFileError("its directory is not where torch.save writes it")
        for one in entries:
            if one.filename.endswith("data.pkl"):
                _check_calls(io.BytesIO(archive.read(one)))


def _check_calls(file: BinaryIO) -> None:
    """TensorFileError if the next pickle in `file` names a function or class that is not needed for tensors."""
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "GLOBAL":
            # `module name`: one of the functions, a type of numbers (`torch float16`), or a storage of them.
            module, _, name = (called := str(argument)).partition(" ")
            known = getattr(torch, name, None) if module == "torch" else None
            storage = known is not None and name.endswith("Storage")
            if not (called in _FUNCTIONS or isinstance(known, torch.dtype) or storage):
                raise TensorFileError(f"it calls {called[:80]!r}, which weights do not need")
        if operation.name in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4"):
            raise TensorFileError(f"it holds {operation.name}, which torch.save never writes")


def _tensors(content: Any) -> Iterator[Tensor]:
    """Every tensor in nested containers, each object once: 60 lists of twice the next one are 61 objects."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list | tuple | set):
            waiting += value
