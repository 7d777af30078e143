import hashlib
import os
import shutil
import threading

import pytest
from positions import on_ranks

from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.data import transfer
from hvdtrain.data.copies import list_files, listing_of_json, read_record, record_path
from hvdtrain.data.staging import stage
from hvdtrain.errors import StagingError

SOLO = Collectives(SoloTransport())


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "shared"
    for name, length in {"a.bin": 100_000, "empty": 0, "deep/er/b.bin": 12_345, "deep/c": 1, "z": 4096}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(hashlib.shake_256(name.encode()).digest(length))
    return root


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def hidden(directory):
    return sorted(path.name for path in directory.iterdir() if "staging-" in path.name)


@pytest.mark.parametrize("chunk_bytes", [1000, 4096, 10**6])
@pytest.mark.parametrize(("size", "local_size"), [(1, 1), (4, 2), (3, 1)])
def test_every_host_gets_a_copy_from_one_reader(tmp_path, source, monkeypatch, size, local_size, chunk_bytes):
    readers, progress = [], []
    reader_class = transfer.Reader
    monkeypatch.setattr("hvdtrain.data.staging.Reader", lambda *a: readers.append(a) or reader_class(*a))

    def rank_main(collectives):
        host = tmp_path / f"host{collectives.topology.cross_rank}"
        told = (lambda *step: progress.append(step)) if collectives.topology.is_root else None
        copy = stage(source, host / "data", collectives=collectives, progress=told, chunk_bytes=chunk_bytes)
        assert contents(copy) == contents(source)  # on every rank of the host
        return copy

    copies = on_ranks(size, rank_main, local_size=local_size)
    assert set(copies) == {tmp_path / f"host{cross}" / "data" for cross in range(size // local_size)}
    assert len(readers) == 1
    assert progress[-1] == (116_442, 116_442)
    assert all(hidden(copy.parent) == [] for copy in copies)


def test_a_good_copy_is_used_again_without_reading_the_source(tmp_path, source, monkeypatch):
    copy = stage(source, tmp_path / "local", collectives=SOLO)
    before = os.stat(copy / "a.bin").st_ino
    monkeypatch.setattr("hvdtrain.data.staging.Reader", None)
    assert stage(source, tmp_path / "local", collectives=SOLO) == copy
    assert os.stat(copy / "a.bin").st_ino == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda copy: (copy / "z").unlink(),
        lambda copy: (copy / "z").write_bytes(b"short"),
        lambda copy: (copy / "z").write_bytes(bytes(4096)),
        lambda copy: (copy / "extra").write_bytes(b"x"),
        lambda copy: record_path(copy).unlink(),
        lambda copy: record_path(copy).write_text('{"files": [{"path": "../../x", "length": 1, "mtime_ns": 1}]}'),
        lambda copy: record_path(copy).write_text("{"),
        lambda copy: (copy / "z").unlink() or (copy / "z").symlink_to("a.bin"),
        lambda copy: shutil.rmtree(copy),
    ],
)
def test_a_copy_that_is_not_good_is_made_again(tmp_path, source, damage):
    copy = stage(source, tmp_path / "local", collectives=SOLO)
    damage(copy)
    stage(source, tmp_path / "local", collectives=SOLO)
    assert contents(copy) == contents(source)
    assert not (copy / "z").is_symlink()
    assert hidden(tmp_path) == []


def test_a_source_that_changed_is_copied_again(tmp_path, source):
    copy = stage(source, tmp_path / "local", collectives=SOLO)
    (source / "a.bin").write_bytes(b"other")
    (source / "z").unlink()
    stage(source, tmp_path / "local", collectives=SOLO)
    assert contents(copy) == contents(source)


def test_a_single_file_is_staged_as_one(tmp_path, source):
    copy = stage(source / "a.bin", tmp_path / "local" / "a", collectives=SOLO)
    assert copy.read_bytes() == (source / "a.bin").read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    copy.write_bytes(b"damaged")
    stage(source / "a.bin", copy, collectives=SOLO)
    assert copy.read_bytes() == (source / "a.bin").read_bytes()


def test_only_hosts_that_need_it_write(tmp_path, source):
    good = stage(source, tmp_path / "host0" / "data", collectives=SOLO)
    before = os.stat(good / "z").st_ino
    done = on_ranks(
        2, lambda c: stage(source, tmp_path / f"host{c.topology.rank}" / "data", collectives=c), local_size=1
    )
    assert contents(done[1]) == contents(source)
    assert os.stat(good / "z").st_ino == before


def test_a_source_that_is_not_there_fails_alike_on_every_rank(tmp_path):
    faults = on_ranks(3, lambda c: stage(tmp_path / "none", tmp_path / "local", collectives=c))
    assert {type(fault) for fault in faults} == {StagingError}
    assert len({str(fault) for fault in faults}) == 1


def test_a_disk_that_fails_on_one_host_ends_it_alike_on_every_rank(tmp_path, source, monkeypatch):
    def rank_main(collectives):
        return stage(source, tmp_path / f"host{collectives.topology.cross_rank}", collectives=collectives)

    def full(path):
        return shutil._ntuple_diskusage(100, 90, 10 if "host1" in str(path) else 10**9)

    monkeypatch.setattr(transfer.shutil, "disk_usage", full)
    faults = on_ranks(4, rank_main, local_size=2)
    assert all("on rank 2" in str(fault) and "10 bytes are free" in str(fault) for fault in faults)
    assert not (tmp_path / "host0").exists()
    assert hidden(tmp_path) == []


def test_a_write_that_fails_in_the_middle_ends_it_alike_on_every_rank(tmp_path, source, monkeypatch):
    class Failing(transfer.Writer):
        def write(self, chunk):
            self.fault = "No space left on device"

    monkeypatch.setattr(transfer, "Writer", Failing)
    faults = on_ranks(2, lambda c: stage(source, tmp_path / "local", collectives=c, chunk_bytes=100))
    assert all("on rank 0: No space left" in str(fault) for fault in faults)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".local.lock", "shared"]


@pytest.mark.parametrize("change", [b"", b"longer" * 30_000])
def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, source, change):
    def meddle(done, total):
        if done == 1000:
            (source / "z").write_bytes(change)

    faults = on_ranks(2, lambda c: stage(source, tmp_path / "local", collectives=c, progress=meddle, chunk_bytes=1000))
    assert all(isinstance(fault, StagingError) for fault in faults)
    assert not (tmp_path / "local").exists()


def test_bytes_that_change_on_the_way_are_found(tmp_path, source, monkeypatch):
    class Flipping(transfer.Writer):
        def write(self, chunk):
            chunk[0] ^= 1
            super().write(chunk)

    monkeypatch.setattr(transfer, "Writer", Flipping)
    with pytest.raises(StagingError, match="other contents"):
        stage(source, tmp_path / "local", collectives=SOLO)
    assert not (tmp_path / "local").exists()


def test_two_jobs_at_once_leave_one_good_copy(tmp_path, source):
    meet = threading.Barrier(2)

    def job(number):
        def rank_main(collectives):
            wait = (lambda done, total: meet.wait(30)) if collectives.topology.is_root else None
            return stage(source, tmp_path / "local", collectives=collectives, progress=wait, chunk_bytes=10_000)

        results[number] = on_ranks(2, rank_main)

    results = {}
    jobs = [threading.Thread(target=job, args=(number,)) for number in (0, 1)]
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    assert results[0] == results[1] == [tmp_path / "local"] * 2
    assert contents(tmp_path / "local") == contents(source)
    assert hidden(tmp_path) == []


def test_records_survive_their_writing(tmp_path, source):
    copy = stage(source, tmp_path / "local", collectives=SOLO)
    record = read_record(copy)
    assert record.same_source(list_files(source))
    assert listing_of_json(record.as_json()) == record
    assert record_path(copy).stat().st_mode & 0o777 == 0o600


def test_links_to_directories_are_refused(tmp_path, source):
    (source / "loop").symlink_to(source)
    with pytest.raises(StagingError, match="symbolic link to a directory"):
        stage(source, tmp_path / "local", collectives=SOLO)
