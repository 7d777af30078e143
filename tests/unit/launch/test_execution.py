"""A job's exit status is passed on, a request to stop becomes harder with time, and nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch.execution import Grace, Job, execute, sent_by_slurm
from hvdtrain.launch.spec import Invocation, Option


def invocation(code):
    return Invocation(program=sys.executable, options=(Option(("-c", code), "test"),), command=())


@pytest.mark.parametrize("status", [0, 1, 2, 75])
def test_the_status_is_passed_on(status):
    assert execute(invocation(f"raise SystemExit({status})"), os.environ).status == status


def test_a_launcher_that_started_nothing_has_not_succeeded():
    started = invocation("import sys; print('srun: error: task 0 launch failed: x', file=sys.stderr)")
    assert execute(started, os.environ).status == 0
    assert execute(replace(started, false_success=("launch failed: ",)), os.environ).status == 1


def test_what_the_launcher_says_is_seen_as_it_comes(capfd):
    assert execute(invocation("import sys; sys.stderr.write('half a line')"), os.environ).status == 0
    assert capfd.readouterr().err == "half a line"


def test_death_by_a_signal_is_128_plus_its_number():
    assert execute(invocation("import os; os.kill(os.getpid(), 9)"), os.environ).status == 137


def test_a_program_that_is_not_there_is_refused():
    with pytest.raises(LaunchError, match="execute /nowhere/mpirun"):
        execute(Invocation(program="/nowhere/mpirun", options=(), command=()), os.environ)


def test_each_start_has_a_folder_of_its_own_for_the_launchers_session(tmp_path):
    code = "import os, pathlib; folder = pathlib.Path(os.environ['SESSION']); (folder / 'left').touch();"
    code += f"file = open({str(tmp_path / 'folders')!r}, 'a'); print(folder, *os.listdir(folder), file=file)"
    for _ in range(2):
        assert execute(replace(invocation(code), session_variable="SESSION"), os.environ).status == 0
    (one, *left), (other, *left_too) = map(str.split, (tmp_path / "folders").read_text().splitlines())
    assert (left, left_too) == (["left"], ["left"])
    assert one != other
    assert not os.path.exists(one)
    assert not os.path.exists(other)


def test_what_the_launcher_left_in_its_group_is_killed():
    code = "import subprocess; print(subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL).pid, flush=True)"
    script = f"import os; from hvdtrain.launch.execution import execute; from {__name__} import invocation;"
    script += f"execute(invocation({code!r}), os.environ)"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert not alive(int(done.stdout))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class FakeProcess:
    pid = 0

    def __init__(self):
        self.received = []

    def poll(self):
        return None

    def send_signal(self, number):
        self.received.append(number)


def test_a_request_to_stop_becomes_harder_with_time():
    now, process, killed = [0.0], FakeProcess(), []
    job = Job(process, Grace(checkpoint_s=60, end_s=5), say=lambda text: None, clock=lambda: now[0], kill=killed.append)
    job.tick()
    assert process.received == []
    job.request_stop(signal.SIGINT)
    assert process.received == [signal.SIGUSR1]
    now[0] = 59.9
    job.tick()
    assert process.received == [signal.SIGUSR1]
    now[0] = 60.0
    job.tick()
    assert process.received == [signal.SIGUSR1, signal.SIGTERM]
    now[0] = 65.0
    job.tick()
    assert killed == [process.pid]


def test_when_slurm_has_told_the_ranks_they_are_not_told_again():
    now, process = [0.0], FakeProcess()
    job = Job(process, Grace(checkpoint_s=60, end_s=5), say=lambda text: None, clock=lambda: now[0])
    job.await_end(signal.SIGTERM)
    assert process.received == []
    now[0] = 60.0
    job.tick()
    assert process.received == [signal.SIGTERM]


def test_who_is_slurm(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("slurmstepd\n")
    assert sent_by_slurm(7, tmp_path)
    assert not sent_by_slurm(8, tmp_path)
    assert not sent_by_slurm(os.getpid())


def test_a_second_request_does_not_wait():
    process = FakeProcess()
    job = Job(process, Grace(), say=lambda text: None)
    job.request_stop(signal.SIGINT)
    job.request_stop(signal.SIGINT)
    assert process.received == [signal.SIGUSR1, signal.SIGTERM]


RANK = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_asks_for_a_checkpoint_and_passes_its_status_on(number):
    script = f"import os, sys; from hvdtrain.launch.execution import execute; from {__name__} import RANK, invocation;"
    script += "sys.exit(execute(invocation(RANK), os.environ).status)"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], env=env, **pipes) as launcher:
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(number)
        assert launcher.wait(timeout=20) == 75
        assert f"{number.name}: asking the ranks" in launcher.stderr.read()


def test_whoever_kills_hvdtrain_takes_the_launcher_along():
    script = f"import os; from hvdtrain.launch.execution import execute; from {__name__} import invocation;"
    script += "execute(invocation('import os,time; print(os.getpid(), flush=True); time.sleep(60)'), os.environ)"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as launcher:
        pid = int(launcher.stdout.readline())
        launcher.kill()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_a_job_that_is_found_broken_is_ended_and_says_why():
    looks = iter(["", "gpu02 has not answered for 30 s"])
    ending = execute(invocation("import time; time.sleep(60)"), os.environ, look=lambda: next(looks, ""))
    assert ending.broken == "gpu02 has not answered for 30 s"
    assert ending.status == 128 + signal.SIGTERM
    assert ending.stopped_by is None
