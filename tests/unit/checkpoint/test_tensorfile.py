"""The files are safetensors to everybody else, and nothing but the expected ones to us."""

import errno
import hashlib
import os
from contextlib import contextmanager, nullcontext

import pytest
import torch
from safetensors.torch import load_file

from hvdtrain.checkpoint import tensorfile
from hvdtrain.checkpoint.tensorfile import entry_of, nbytes, open_regular, read, rows_of, write_rows
from hvdtrain.statetree import DTYPES, flatten, leaves, raw_bytes

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


@contextmanager
def opened(path):
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        with open_regular(path.name, directory=fd) as file:
            yield file
    finally:
        os.close(fd)


def write(path, tensors):
    rows = rows_of(tensors)
    write_rows(path, rows)
    return entry_of(rows)


def leaves_of(tensors):
    return list(leaves(flatten(tensors).skeleton))


def every_dtype():
    """One tensor of 3 elements for each dtype, with odd lengths so that a wrong order would misalign the next."""
    rows = {name: torch.arange(3 * dtype.itemsize, dtype=torch.uint8) % 2 for name, dtype in DTYPES.items()}
    return {name: rows[name].view(DTYPES[name]) for name in sorted(rows)}


def test_every_dtype_comes_back_bit_for_bit(tmp_path):
    tensors = {**every_dtype(), "scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "turned": torch.eye(3)[:2].t()}
    entry = write(tmp_path / "t.safetensors", tensors)
    with opened(tmp_path / "t.safetensors") as file:
        back = read(file, leaves_of(tensors), entry)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(raw_bytes(back[name]), raw_bytes(tensor)), name


def test_the_library_reads_our_files(tmp_path):
    tensors = {"b": torch.tensor([True, False, True]), "w": torch.randn(3, 5), "h": torch.randn(3).bfloat16()}
    write(tmp_path / "t.safetensors", tensors)
    theirs = load_file(tmp_path / "t.safetensors")
    assert theirs.keys() == tensors.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in tensors.items())


def test_dtypes_that_safetensors_lacks_are_rows_of_bytes_to_the_library(tmp_path):
    tensor = torch.tensor([1 + 2j, 3j], dtype=torch.complex128)
    write(tmp_path / "t.safetensors", {"z": tensor})
    assert torch.equal(load_file(tmp_path / "t.safetensors")["z"].view(torch.complex128), tensor)


def test_files_are_for_their_owner_and_never_replaced(tmp_path):
    write_rows(tmp_path / "f", [memoryview(b"x")])
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_rows(tmp_path / "f", [memoryview(b"y")])
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    with pytest.raises(FileExistsError):
        write_rows(tmp_path / "link", [memoryview(b"y")])


def test_a_reading_without_values_looks_at_length_and_header_alone(tmp_path):
    tensors = {"w": torch.arange(100.0)}
    entry = write(tmp_path / "t", tensors)
    data = bytearray((tmp_path / "t").read_bytes())
    for position, fault in ((-1, None), (10, "header")):
        data[position] ^= 1
        (tmp_path / "t").write_bytes(data)
        with opened(tmp_path / "t") as file, pytest.raises(ValueError, match=fault) if fault else nullcontext():
            assert read(file, leaves_of(tensors), entry, device="meta")["w"].is_meta


@pytest.mark.parametrize(
    "damage", [lambda data: b"?" + data[1:], lambda data: data[:-1] + b"?", lambda data: data[:-1]]
)
def test_what_reads_back_as_other_bytes_is_an_error_of_the_disk(tmp_path, monkeypatch, damage):
    real = tensorfile._write

    def damaging(path, rows):
        real(path, rows)
        path.write_bytes(damage(path.read_bytes()))

    monkeypatch.setattr(tensorfile, "_write", damaging)
    with pytest.raises(OSError, match="other bytes than were written") as raised:
        write_rows(tmp_path / "f", [memoryview(b"x" * 9)])
    assert raised.value.errno == errno.EIO


def test_the_hash_is_that_of_all_rows(tmp_path):
    rows = [memoryview(os.urandom(count)) for count in (0, 3, tensorfile.CHUNK_BYTES + 5)]
    write_rows(tmp_path / "f", rows)
    entry = entry_of(rows)
    whole = (tmp_path / "f").read_bytes()
    assert whole == b"".join(rows)
    assert (entry.length, entry.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (("w", "float32", [99]), "400 bytes|cannot hold"),
        (("w", "float32", [10, 10]), "header|cannot hold"),
        (("w", "int32", [100]), "header|cannot hold"),
        (("v", "float32", [100]), "header"),
        (("w", "float32", [1 << 61, 1 << 61]), "cannot hold"),
    ],
)
def test_another_name_dtype_or_shape_is_refused_before_anything_is_allocated(tmp_path, leaf, message):
    entry = write(tmp_path / "t", {"w": torch.arange(100.0)})
    with opened(tmp_path / "t") as file, pytest.raises(ValueError, match=message):
        read(file, [leaf], entry)


def test_a_file_of_another_length_is_refused_unread(tmp_path):
    tensors = {"w": torch.arange(4.0)}
    entry = write(tmp_path / "t", tensors)
    with (tmp_path / "t").open("ab") as file:
        file.write(b"x")
    with opened(tmp_path / "t") as file, pytest.raises(ValueError, match=f"{entry.length + 1} bytes long"):
        read(file, leaves_of(tensors), entry)


def test_only_plain_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    for name in ("pipe", "directory"):
        with pytest.raises(ValueError, match="not a regular file"), opened(tmp_path / name):
            pass
    with pytest.raises(OSError, match="symbolic links"), opened(tmp_path / "link"):
        pass


def test_sizes_follow_from_dtypes_and_shapes():
    assert [nbytes(("x", *rest)) for rest in (("float64", [2, 3]), ("bool", []), ("bfloat16", [0, 9]))] == [48, 1, 0]
