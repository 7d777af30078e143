import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.cli import main
from hvdtrain.data.audit import audit
from hvdtrain.data.ledger import Attempt, Ledger, begin_attempt, end_attempt, rank_path, read_rows
from hvdtrain.data.permutation import Permutation
from hvdtrain.data.sampler import Sampler
from hvdtrain.errors import ConfigError, RunDirectoryError

SEED = 9


class Job:
    """A run that is started, killed, resumed at another size and ended, without any training."""

    def __init__(self, run_dir, n=50, remainder="keep"):
        self.run_dir, self.n, self.remainder = run_dir, n, remainder
        self.checkpoint = (None, None)  # step, sampler state

    def attempt(self, size, *, until, saves=(), global_batch_size=8, end=False, unflushed=0, change=None):
        """Train to step `until`, checkpointing at `saves`; the last `unflushed` rows of rank 0 are never written."""
        resumed_from, state = self.checkpoint
        described = Attempt(
            size=size,
            resumed_from=resumed_from,
            n=self.n,
            seed=SEED,
            global_batch_size=global_batch_size,
            remainder=self.remainder,
        )
        number = begin_attempt(self.run_dir, described)
        ledgers = [Ledger(self.run_dir, rank=rank, attempt=number) for rank in range(size)]
        samplers = [
            Sampler(self.n, seed=SEED, global_batch_size=global_batch_size, rank=r, size=size, remainder=self.remainder)
            for r in range(size)
        ]
        for sampler in samplers if state else ():
            sampler.load_state_dict(state)
        shares = [iter(()) for _ in samplers]
        for step in range((resumed_from or 0) + 1, until + 1):
            if samplers[0].finished or step == (resumed_from or 0) + 1:
                for sampler in samplers if samplers[0].finished else ():
                    sampler.next_epoch()
                shares = [sampler.shares() for sampler in samplers]
            for rank, sampler in enumerate(samplers):
                share = next(shares[rank])
                sampler.commit(share)
                if rank or step <= until - unflushed:
                    ledgers[rank].append(step, share if change is None else change(step, rank, share))
            if step in saves:
                for ledger in ledgers:
                    ledger.flush()
                self.checkpoint = step, samplers[0].state_dict()
        for ledger in ledgers:
            ledger.close()
        if end:
            end_attempt(self.run_dir, number, step=until)
            self.checkpoint = until, samplers[0].state_dict()


def test_a_run_without_trouble_is_clean(tmp_path):
    Job(tmp_path).attempt(2, until=21, end=True)
    report = audit(tmp_path)
    assert report.clean, report.text()
    assert [(use.used, use.complete) for use in report.epochs] == [(50, True), (50, True), (50, True)]
    assert (report.steps, report.finished) == (21, True)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    batches=st.lists(st.integers(1, 12), min_size=5, max_size=5),
    lengths=st.lists(st.integers(0, 15), min_size=5, max_size=5),
    saves=st.lists(st.integers(0, 15), min_size=5, max_size=5),
    unflushed=st.integers(0, 3),
    end=st.booleans(),
)
def test_kills_resumes_and_changes_of_size_are_clean(
    tmp_path_factory, n, remainder, sizes, batches, lengths, saves, unflushed, end
):
    if remainder == "drop":
        batches = [min(batch, n) for batch in batches]
        batches = [batches[0]] * 5  # at another batch size, what one attempt dropped another may still use
    job = Job(tmp_path_factory.mktemp("run"), n, remainder)
    for at, size in enumerate(sizes):
        begin = job.checkpoint[0] or 0
        last = at == len(sizes) - 1
        job.attempt(
            size,
            until=begin + lengths[at],
            saves={begin + saves[at]},
            global_batch_size=batches[at],
            end=end and last,
            unflushed=0 if begin + saves[at] > begin + lengths[at] - unflushed or (end and last) else unflushed,
        )
    report = audit(job.run_dir)
    assert report.clean, report.text()
    if end:
        assert report.steps == begin + lengths[len(sizes) - 1]
        assert sum(use.used for use in report.epochs if use.complete and remainder != "drop") % n == 0


def edit(run_dir, rank, change):
    """Rewrite the rows of one rank's file."""
    path = rank_path(run_dir, rank)
    rows = [change(row) for row in read_rows(path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


@pytest.mark.parametrize("until", [21, 25])  # step 17 is in an epoch that is over, or not
@pytest.mark.parametrize("step", [3, 17, 20])
def test_a_planted_duplicate_is_found_and_named(tmp_path, until, step):
    Job(tmp_path).attempt(2, until=until, end=True)
    first = Permutation(50, seed=SEED, epoch=(step - 1) // 7)[0:1].tolist()[0]
    edit(tmp_path, 1, lambda row: row._replace(samples=[*row.samples[:-1], first]) if row.step == step else row)
    report = audit(tmp_path)
    assert not report.clean
    assert [(r.epoch, r.step, r.sample) for r in report.repetitions] == [((step - 1) // 7, step, first)]
    assert [loss.epoch for loss in report.losses] == [(step - 1) // 7]  # it stands in place of another


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("step", [3, 17, 22])
def test_a_planted_loss_is_found_and_named(tmp_path, step, end):
    Job(tmp_path).attempt(3, until=24, end=end)
    lost = []

    def lose(row):
        if row.step != step:
            return row
        lost.append(row.samples[0])
        return row._replace(samples=row.samples[1:])

    edit(tmp_path, 1, lose)
    report = audit(tmp_path)
    assert [(loss.epoch, loss.sample) for loss in report.losses] == [((step - 1) // 7, lost[0])]
    assert any(f"step {step} used" in fault for fault in report.faults)


@pytest.mark.parametrize("step", [3, 24])
def test_a_row_that_is_missing_is_found_and_its_samples_named(tmp_path, step):
    Job(tmp_path).attempt(3, until=24, end=True)
    gone = next(row.samples for row in read_rows(rank_path(tmp_path, 2)) if row.step == step)
    edit(tmp_path, 2, lambda row: None if row.step == step else row)
    report = audit(tmp_path)
    assert [loss.sample for loss in report.losses] == sorted(gone)
    assert any(f"rank 2 wrote nothing for step {step}" in fault for fault in report.faults)


def test_a_step_that_no_rank_has_is_found_and_its_samples_named(tmp_path):
    Job(tmp_path).attempt(2, until=19, end=True)
    for rank in (0, 1):
        edit(tmp_path, rank, lambda row: None if row.step == 16 else row)
    report = audit(tmp_path)
    assert "steps 16 to 16 are not in the ledger of any rank" in report.faults
    expected = Permutation(50, seed=SEED, epoch=2)[8:16].tolist()
    assert sorted(loss.sample for loss in report.losses) == sorted(expected)


def test_an_end_that_is_missing_is_found(tmp_path):
    Job(tmp_path).attempt(2, until=10, end=True)
    for rank in (0, 1):
        edit(tmp_path, rank, lambda row: None if row.step > 8 else row)
    assert audit(tmp_path).faults == ["steps 9 to 10 are not in the ledger of any rank"]


def test_an_epoch_that_ended_early_is_found_and_its_samples_named(tmp_path):
    def skip(step, rank, share):
        return SimpleNamespace(**vars(share) | {"epoch": 1, "start": share.start - 16} if step > 2 else vars(share))

    Job(tmp_path).attempt(1, until=4, end=True, change=skip)
    report = audit(tmp_path)
    assert any("epoch 0 ended at position 16 of 50" in fault for fault in report.faults)
    assert len([loss for loss in report.losses if loss.epoch == 0]) == 34


def test_a_resume_that_repeats_a_step_is_found(tmp_path):
    job = Job(tmp_path)
    job.attempt(2, until=5, saves={4})
    job.checkpoint = (4, job.checkpoint[1] | {"consumed": 24})  # it says step 4 and goes back to the data of step 3
    job.attempt(2, until=6, end=True)
    report = audit(tmp_path)
    assert {r.step for r in report.repetitions} == {5}
    assert len(report.repetitions) == 8
    assert any("begins at position 24 of epoch 0, where 32 was next" in fault for fault in report.faults)


def test_a_resume_that_skips_a_step_is_found(tmp_path):
    job = Job(tmp_path)
    job.attempt(2, until=5, saves={4})
    job.checkpoint = (4, job.checkpoint[1] | {"consumed": 40})
    job.attempt(2, until=5, end=True)
    report = audit(tmp_path)
    skipped = Permutation(50, seed=SEED, epoch=0)[32:40]
    assert sorted(loss.sample for loss in report.losses) == sorted(skipped.tolist())


def test_another_seed_on_the_way_is_found(tmp_path):
    job = Job(tmp_path)
    job.attempt(1, until=3, saves={3})
    begin_attempt(tmp_path, Attempt(size=1, resumed_from=3, n=50, seed=SEED + 1, global_batch_size=8))
    with Ledger(tmp_path, rank=0, attempt=2) as ledger:
        ledger.append(4, SimpleNamespace(epoch=0, start=24, stop=32, indices=Permutation(50, seed=10, epoch=0)[24:32]))
    assert any("another data set, seed or order" in fault for fault in audit(tmp_path).faults)


def test_a_line_cut_short_by_a_kill_is_closed_and_left_out(tmp_path):
    job = Job(tmp_path)
    job.attempt(2, until=6, saves={4})
    path = rank_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-9])
    assert audit(tmp_path).clean  # step 6 was not saved, so it does not count
    job.attempt(2, until=9, end=True)
    report = audit(tmp_path)
    assert report.clean, report.text()
    assert report.torn_lines == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_ledger_may_begin_in_the_middle_of_an_epoch(tmp_path):
    elsewhere = Job(tmp_path / "unrecorded")
    elsewhere.attempt(2, until=3, saves={3})
    job = Job(tmp_path / "run")
    job.checkpoint = elsewhere.checkpoint
    job.attempt(3, until=20, end=True)
    report = audit(job.run_dir)
    assert report.clean, report.text()
    assert (report.epochs[0].before, report.epochs[0].used, report.steps) == (24, 26, 17)
    edit(job.run_dir, 0, lambda row: row._replace(samples=row.samples[1:]) if row.step == 5 else row)
    assert len(audit(job.run_dir).losses) == 1


def test_a_start_from_nothing_makes_what_was_before_void(tmp_path):
    job = Job(tmp_path)
    job.attempt(2, until=9)
    job.attempt(1, until=3, end=True)
    report = audit(tmp_path)
    assert report.clean
    assert (report.steps, report.undone_rows) == (3, 18)


def test_the_verb_says_it_and_exits_so(tmp_path, capsys):
    Job(tmp_path).attempt(2, until=9, end=True)
    assert main(["audit", str(tmp_path)]) == 0
    assert "clean: no sample was used twice" in capsys.readouterr().out
    edit(tmp_path, 0, lambda row: row._replace(samples=row.samples[1:]) if row.step == 2 else row)
    assert main(["audit", str(tmp_path)]) == 1
    assert "REFUTED: sample" in capsys.readouterr().out
    assert main(["audit", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["clean"] is False
    assert main(["audit", str(tmp_path / "elsewhere")]) == 2
    assert "--data.ledger true" in capsys.readouterr().err


def test_batches_without_numbers_are_refused(tmp_path):
    with Ledger(tmp_path, rank=0, attempt=1) as ledger, pytest.raises(ConfigError, match="does not number"):
        ledger.append(1, SimpleNamespace(epoch=0, start=0, stop=8, indices=None))


def test_a_line_that_is_no_attempt_is_refused(tmp_path):
    begin_attempt(tmp_path, Attempt(size=1, resumed_from=None, n=5, seed=0, global_batch_size=1))
    with (tmp_path / "ledger" / "attempts.jsonl").open("a") as file:
        file.write('{"attempt": 2}\n')
    with pytest.raises(RunDirectoryError, match="no attempt"):
        audit(tmp_path)


def test_attempts_are_numbered_from_one(tmp_path):
    described = Attempt(size=1, resumed_from=None, n=5, seed=0, global_batch_size=1)
    assert [begin_attempt(tmp_path, replace(described, size=size)) for size in (1, 2, 3)] == [1, 2, 3]
