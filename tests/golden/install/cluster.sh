# what the build needs
/venv/bin/python -m pip --disable-pip-version-check install --constraint pins.txt --quiet wheel cmake ninja cloudpickle psutil pyyaml packaging cffi setuptools

# the C++ standard of this torch
mkdir -p /cache/stage
cat >/cache/stage/cxx <<'END'
#!/bin/sh
exec /usr/bin/g++ "$@" -std=c++17
END
chmod +x /cache/stage/cxx

# compile (three to four minutes on two cores)
CXX=/cache/stage/cxx \
    HOROVOD_CMAKE=/venv/bin/cmake \
    HOROVOD_WITH_MPI=1 \
    HOROVOD_WITH_PYTORCH=1 \
    HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_MXNET=1 \
    CMAKE_POLICY_VERSION_MINIMUM=3.5 \
    PATH=/opt/openmpi/bin:/venv/bin:"$PATH" \
    /venv/bin/python -m pip --disable-pip-version-check wheel --no-build-isolation --no-cache-dir --no-deps --no-binary horovod --wheel-dir /cache/stage/wheels horovod==0.28.1

# keep it
mkdir -p /cache/key
mv /cache/stage/wheels/*.whl /cache/key

# what Horovod needs
/venv/bin/python -m pip --disable-pip-version-check install --constraint pins.txt --quiet cloudpickle psutil pyyaml packaging cffi setuptools

# Horovod
/venv/bin/python -m pip --disable-pip-version-check install --quiet --no-index --no-deps --force-reinstall /cache/key/horovod.whl

# the proof: an all-reduce on two ranks
OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PRTE_ALLOW_RUN_AS_ROOT=1 \
    PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PATH=/opt/openmpi/bin:"$PATH" \
    /opt/openmpi/bin/mpirun --bind-to none --oversubscribe --mca mpi_yield_when_idle 1 -np 2 /venv/bin/python -c 'import sys, horovod, torch, horovod.torch as hvd
hvd.init()
gpu = hvd.nccl_built() and torch.cuda.device_count() > 1
device = f"cuda:{hvd.local_rank()}" if gpu else "cpu"
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0], device=device), op=hvd.Sum).item()
if hvd.rank() == 0:
    print(f"horovod {horovod.__version__} proved: {hvd.size()} ranks, sum {total}, on {device}", flush=True)
status = 0 if (hvd.size(), total) == (2, 3.0) else 1
hvd.shutdown()
sys.exit(status)
'
