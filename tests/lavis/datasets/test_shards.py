"""Shards give back what was written, in a form that HDF5 knows, and say what is wrong with them."""

from __future__ import annotations

import json
import os
import resource
import struct
import tracemalloc
from pathlib import Path

import h5py
import lz4.block
import numpy as np
import pytest
from h5py import h5g
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavis.common.errors import FileError
from lavis.datasets import shards
from lavis.datasets.records import BadSampleError
from lavis.datasets.shards import ShardError, ShardFolder, check_shard, open_shard, write_shard
from xrl_alignment.runs.transitions import read_transition

NAME = "round000_env0001_steps003.h5"
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)


def test_every_transition_as_the_buffer_reads_it(shard_folder: Path) -> None:
    source = ShardFolder(shard_folder)
    assert len(source) == 11
    for index in range(11):
        record, written = source.read(index), read_transition(*source.place(index))
        assert np.array_equal(record.image, written.image)
        assert (record.text_input, record.text_output) == (written.text_input, written.text_output)
        assert record.text_output_neg == written.text_output_neg
        assert record.image[0, 0, 0] == index
    assert source.read(5).game == "pick_heat_then_place_in_recep-Apple-None-Fridge-1/trial_T1"
    assert source.where(5).endswith("round000_env0001_steps003.h5, step 1")


@pytest.mark.parametrize("black", [False, True])
def test_as_many_earlier_images_as_states_right_before_are_stored(tmp_path: Path, black: bool) -> None:
    turns = [0, 1, 3, 4]  # the state of turn 2 is not stored
    fields = {
        "image": [np.full((4, 4, 3), 1 + turn, np.uint8) for turn in turns],
        "text_input": ["> "] * 4,
        "text_output": ["look"] * 4,
        "text_output_neg": ["look"] * 4,
        "step": [np.int64(turn) for turn in turns],
    }
    write_shard(tmp_path / "round000_env0000_steps004.h5", fields, {})
    source = ShardFolder(tmp_path, frames=3, blank_images=black)
    shown = [[int(image[0, 0, 0]) for image in source.read(row).earlier] for row in range(4)]
    assert shown == ([[], [0], [0], [0]] if black else [[], [1], [2], [4]])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(TEXTS, st.integers(0, 2**32 - 1)), min_size=1, max_size=5), flat=st.booleans())
def test_any_text_image_and_number_comes_back(tmp_path: Path, rows: list, flat: bool) -> None:
    images = [
        np.full((6, 5, 3), seed % 256, np.uint8) if flat else np.random.default_rng(seed).integers(0, 256, (6, 5, 3))
        for _, seed in rows
    ]
    fields = {
        "image": [image.astype(np.uint8) for image in images],
        "text": [text for text, _ in rows],
        "logps": [np.float32([seed, -seed]) for _, seed in rows],
        "tokens": [np.full((2, 4), seed % 100, np.float16) for _, seed in rows],
    }
    path = tmp_path / "round000_env0000.h5"
    write_shard(path, fields, {"game": "pick-Ä/t"})
    shard = open_shard(path)
    assert (shard.steps, shard.game) == (len(rows), "pick-Ä/t")
    for step in range(len(rows)):
        row = shard.read(step, tuple(fields))
        assert row["text"] == fields["text"][step]
        for name in ("image", "logps", "tokens"):
            assert row[name].dtype == fields[name][step].dtype and np.array_equal(row[name], fields[name][step])
    assert list(tmp_path.glob(".*")) == []


def test_other_programs_can_read_the_texts_and_find_a_registered_filter(shard_folder: Path) -> None:
    with h5py.File(shard_folder / NAME) as file:
        assert file["text_input"].asstr()[1] == "Task 1.\n> "
        number = file["image"].id.get_create_plist().get_filter(0)[0]
        mask, chunk = file["image"].id.read_direct_chunk((1, 0, 0, 0))
    assert number == 32004 and mask == 0
    # HDF5's LZ4 filter: bytes in all and in a block (big-endian), then each block's packed size and bytes.
    whole, block, packed = struct.unpack(">QII", chunk[:16])
    assert whole == block == 112 * 112 * 3 and packed == len(chunk) - 16
    assert lz4.block.decompress(chunk[16:], uncompressed_size=block) == bytes([5]) * whole


def test_a_file_that_may_not_grow_is_one_line(tmp_path: Path) -> None:
    """HDF5 tells a full disk as two lines with addresses in them; here the process's limit ends the file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
        with pytest.raises(FileError) as raised:
            write_shard(tmp_path / NAME, {"image": [noise] * 3}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(raised.value) == f"shard {tmp_path / NAME} could not be written: File too large"
    assert list(tmp_path.iterdir()) == []


def test_the_same_steps_are_the_same_bytes_at_any_time(shard_folder: Path) -> None:
    with h5py.File(shard_folder / NAME) as file:  # HDF5 would write down the second in which a field was made
        assert {name: h5g.get_objinfo(file.id, name.encode()).mtime for name in file} == dict.fromkeys(file, 0)


def test_a_shard_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "round000_env0000_steps001.h5"
    for text in ("first", "a longer second"):
        write_shard(path, {"text_output": [text]}, {})
        assert open_shard(path).read(0, ("text_output",)) == {"text_output": text}


def test_a_long_run_knows_few_of_its_shards(tmp_path: Path, shard_folder: Path) -> None:
    """A soak of two hours grew by the indexes of the shards that it drew from."""
    (shard, *_) = sorted(shard_folder.glob("*.h5"))
    names = [tmp_path / f"round{round:03d}_env0000_steps001.h5" for round in range(3000)]
    for name in names:
        os.link(shard, name)
    tracemalloc.start()
    try:
        for name in names:
            open_shard(name)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 3 << 20, f"{kept:,} bytes for {len(names)} shards"


@pytest.mark.parametrize("fields", [{}, {"a": [], "b": []}, {"a": ["x"], "b": ["x", "y"]}])
def test_fields_that_make_no_episode(tmp_path: Path, fields: dict) -> None:
    with pytest.raises(ValueError, match="the same length of at least 1"):
        write_shard(tmp_path / "round000_env0000_steps001.h5", fields, {})
    assert list(tmp_path.iterdir()) == []


def test_images_of_another_type(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"are uint8 \(H, W, 3\), not float64 \(4, 4, 3\)"):
        write_shard(tmp_path / "round000_env0000_steps001.h5", {"image": [np.zeros((4, 4, 3))]}, {})
    assert list(tmp_path.iterdir()) == []


def test_damaged_shard_is_named(tmp_path: Path, shard_folder: Path) -> None:
    data = (shard_folder / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(data[: len(data) // 2])
    with pytest.raises(BadSampleError, match=rf"{NAME} cannot be read: it has no index at its end \(cut short, or"):
        ShardFolder(tmp_path).read(0)


def test_a_image_that_was_damaged_after_the_shard_was_opened(tmp_path: Path, shard_folder: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes((shard_folder / NAME).read_bytes())
    shard = open_shard(path)
    with h5py.File(path) as file:
        chunk = file["image"].id.get_chunk_info(2)
    with open(path, "r+b") as file:
        file.seek(chunk.byte_offset + 16)
        file.write(b"\xff" * (chunk.size - 16))
    with pytest.raises(ShardError, match=rf"{NAME}, step 2: the shard is damaged"):
        shard.read(2, ("image",))
    path.write_bytes(b"")
    with pytest.raises(ShardError, match=rf"{NAME}, step 0: the shard is damaged: the file ends before its data"):
        shard.read(0, ("text_input",))


def test_shards_of_another_version_and_foreign_files(
    tmp_path: Path, shard_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, content in enumerate((b"", b"short", b"PK\x03\x04 something else that is longer")):
        (tmp_path / f"{number}.h5").write_bytes(content)
        with pytest.raises(ShardError, match=f"{number}.h5 cannot be read: it has no index at its end"):
            open_shard(tmp_path / f"{number}.h5")
    monkeypatch.setattr(shards, "VERSION", 7)
    with pytest.raises(ShardError, match="shards of version 2 cannot be read, only 7"):
        shards.Shard(str(shard_folder / NAME))


def test_an_index_that_is_damaged(tmp_path: Path, shard_folder: Path) -> None:
    whole = (shard_folder / NAME).read_bytes()
    (length,) = struct.unpack("<Q", whole[-16:-8])
    for content in (whole[: -16 - length] + b"x" * length + whole[-16:], whole[:-16] + b"\xff" * 8 + whole[-8:]):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(ShardError, match=f"{NAME} cannot be read: "):
            open_shard(tmp_path / NAME)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: index.update(game=-1), "its game is int, not text"),
        (lambda index: index["fields"]["text_output"].update(dtype="|u1"), "its text_output is not text"),
        (lambda index: index["fields"]["text_output"].update(shape=[2]), "its text_output is not text"),
    ],
)
def test_an_index_with_other_types(tmp_path: Path, shard_folder: Path, change, reason: str) -> None:
    whole = (shard_folder / NAME).read_bytes()
    (length,) = struct.unpack("<Q", whole[-16:-8])
    index = json.loads(whole[-16 - length : -16])
    change(index)
    text = json.dumps(index).encode()
    (tmp_path / NAME).write_bytes(whole[: -16 - length] + text + struct.pack("<Q", len(text)) + whole[-8:])
    with pytest.raises(ShardError, match=reason):
        ShardFolder(tmp_path).read(0)


IMAGE_BOMB = {"dtype": "|u1", "shape": [100_000, 100_000, 3], "steps": 1, "start": 0, "chunks": [[0, 20]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: [field.update(steps=10**15) for field in fields.values()],
        lambda fields: [field.update(steps=10**15, dtype="|S0", start=0, chunks=[]) for field in fields.values()],
        lambda fields: fields["text_input"].update(dtype="|S1", steps=10**15),
        lambda fields: fields["text_input"].update(start=10**15),
        lambda fields: fields["text_input"].update(start=-5),
        lambda fields: fields["text_input"].update(steps=0),
        lambda fields: fields["image"]["chunks"].append([0, 10**12]),
        lambda fields: fields["image"]["chunks"].pop(),
        lambda fields: fields.update(image=IMAGE_BOMB),
    ],
)
def test_an_index_cannot_claim_more_than_the_file_holds(tmp_path: Path, shard_folder: Path, change) -> None:
    """Whoever read a shard of a few hundred bytes with 10^15 steps did so until its memory was full."""
    whole = (shard_folder / NAME).read_bytes()
    (length,) = struct.unpack("<Q", whole[-16:-8])
    index = json.loads(whole[-16 - length : -16])
    change(index["fields"])
    text = json.dumps(index).encode()
    (tmp_path / NAME).write_bytes(whole[: -16 - length] + text + struct.pack("<Q", len(text)) + whole[-8:])
    with pytest.raises(ShardError, match=f"{NAME} cannot be read: its index claims"):
        open_shard(tmp_path / NAME)


@pytest.mark.parametrize("claimed", ["999999999999999", "002", "000"])
def test_a_name_does_not_decide_how_many_steps_a_shard_has(tmp_path: Path, shard_folder: Path, claimed: str) -> None:
    """A folder with one small file had 10^15 records; or lacked some, and nobody was told."""
    name = f"round000_env0001_steps{claimed}.h5"
    (tmp_path / name).write_bytes((shard_folder / NAME).read_bytes())
    source = ShardFolder(tmp_path)
    assert len(source) <= (shard_folder / NAME).stat().st_size
    with pytest.raises(ShardError, match=rf"{name}: its name says that it has \d+ steps, but it has 3"):
        source.read(0)


def test_shard_without_images(tmp_path: Path) -> None:
    fields = {name: ["look"] for name in ("text_input", "text_output", "text_output_neg")}
    path = tmp_path / "round000_env0000_steps001.h5"
    write_shard(path, fields, {})
    with pytest.raises(BadSampleError, match="has no images"):
        ShardFolder(tmp_path).read(0)
    assert not ShardFolder(tmp_path, blank_images=True).read(0).image.any()
    with pytest.raises(ShardError, match="it has no image, only "):
        read_transition(path, 0)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder of shards"):
        ShardFolder(tmp_path / "absent")


def test_the_checksum_finds_every_flipped_byte(tmp_path: Path, shard_folder: Path) -> None:
    whole = (shard_folder / NAME).read_bytes()
    check_shard(shard_folder / NAME)
    random = np.random.default_rng(0)
    contents = [whole[: len(whole) // 2], b""]
    for at in (0, len(whole) - 30, *random.integers(0, len(whole) - 16, 60)):
        contents.append(bytearray(whole))
        contents[-1][at] ^= 1 << int(random.integers(8))
    for number, content in enumerate(contents):
        # Each in a file of its own: what is written in one tick of the file system's clock is taken for unchanged.
        path = tmp_path / str(number) / NAME
        path.parent.mkdir()
        path.write_bytes(content)
        with pytest.raises(ShardError, match=NAME):
            check_shard(path)
    with pytest.raises(ShardError, match="absent.h5"):
        check_shard(tmp_path / "absent.h5")


def test_a_shard_of_before_the_checksum_is_read(tmp_path: Path, shard_folder: Path) -> None:
    whole = (shard_folder / NAME).read_bytes()
    (length,) = struct.unpack("<Q", whole[-16:-8])
    data, index = whole[: -16 - length], whole[-16 - length : -16]
    old = index[: index.rindex(b', "crc32"')] + b"}"
    (tmp_path / NAME).write_bytes(data + old + struct.pack("<Q8s", len(old), b"emac-idx"))
    check_shard(tmp_path / NAME)
    assert open_shard(tmp_path / NAME).read(1, ("text_input",)) == {"text_input": "Task 1.\n> "}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_index_never_escapes_as_another_error(
    tmp_path: Path, shard_folder: Path, data: st.DataObject
) -> None:
    whole = bytearray((shard_folder / NAME).read_bytes())
    (length,) = struct.unpack("<Q", whole[-16:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(whole) - 16 - length, len(whole) - 1))
        whole[at] = data.draw(st.sampled_from(b'0123456789-"[]{},:.eE|<OSUbx \xff'))
    (tmp_path / NAME).write_bytes(whole)
    try:
        shard = open_shard(tmp_path / NAME)
        for step in range(3):
            shard.read(step, ("image", "text_input", "text_output"))
    except ShardError:
        return
