"""Records in files and on the console, and forgetting what a resumed run makes again."""

import json
import logging

from hvdtrain.metrics.writers import console, forget_after, jsonl, tensorboard


def record(step, loss=0.5):
    return {"step": step, "epoch": 0, "split": "train", "time_s": 1.0, "loss": loss}


def test_each_record_is_one_line_at_once_and_private(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write = jsonl(path)
    for step in (1, 2):
        write(record(step))
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, step + 1))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_resumed_run_forgets_later_steps_and_the_half_line_of_a_killed_writer(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write = jsonl(path)
    for step in (10, 20, 30):
        write(record(step))
    path.write_text(path.read_text() + '{"step": 3')
    forget_after(path, 20)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20]


def test_forgetting_before_the_first_record_is_no_fault(tmp_path):
    forget_after(tmp_path / "metrics.jsonl", 5)
    assert list(tmp_path.iterdir()) == []


def test_the_console_shows_metrics_but_not_bookkeeping(caplog):
    log = logging.getLogger("hvdtrain.test.console")
    with caplog.at_level(logging.INFO):
        console(log)(record(40, loss=0.25) | {"accuracy": 0.875})
    assert caplog.messages == ["train step 40 epoch 0: loss 0.25, accuracy 0.875"]


def test_tensorboard_gets_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tensorboard(tmp_path)(record(7))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(7, 0.5)]
