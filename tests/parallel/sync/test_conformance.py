"""Every strategy against one process on the joined batch; a new one joins by a line in EXACT."""

import pytest
from scenarios import SCENARIOS, alone, apart, together

from hvdtrain.config import SyncConfig
from hvdtrain.errors import UsageError
from hvdtrain.statetree import digest
from hvdtrain.sync.strategies import combination_faults

EXACT = {
    "allreduce": SyncConfig(),
    "allreduce in small buckets": SyncConfig(bucket_bytes=256),
    "allreduce by timing": SyncConfig(deterministic=False),
    "shared_memory": SyncConfig(strategy="shared_memory"),
    "shared_memory in small buckets": SyncConfig(strategy="shared_memory", bucket_bytes=256),
    "parameter_server": SyncConfig(strategy="parameter_server"),
    "auto": SyncConfig(strategy="auto"),
    "shared_memory after backward": SyncConfig(strategy="shared_memory", overlap=False),
}


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda scenario: scenario.name)
def case(request):
    return request.param, alone(request.param)


@pytest.mark.parametrize("strategy", EXACT)
def test_ten_steps_are_those_of_one_process_on_the_joined_batch(run, case, strategy):
    scenario, expected = case
    if combination_faults(EXACT[strategy], precision=scenario.prepared.get("precision", "fp32")):
        with pytest.raises(UsageError):
            together(run, scenario, EXACT[strategy])
        return
    got = together(run, scenario, EXACT[strategy])
    digests = run.collectives.gather_json(digest(got))
    difference, name = apart(expected, got)
    assert difference <= scenario.tolerance, f"{name} differs by {difference}"
    assert len(set(digests)) == 1, "the ranks differ from each other"


@pytest.mark.parametrize("strategy", EXACT)
def test_the_number_of_samples_need_not_be_known_before(run, strategy):
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "idle")
    difference, name = apart(alone(scenario), together(run, scenario, EXACT[strategy], known=False))
    assert difference <= scenario.tolerance, name
