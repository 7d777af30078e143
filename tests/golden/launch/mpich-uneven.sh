# launcher: MPICH (Hydra) 4.2.3
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -n 3: the number of ranks
# -hosts gpu01:2,gpu02:1: the hosts in the order of the ranks, with how many each gets
# -bind-to none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# -genvlist HOROVOD_CYCLE_TIME,PATH: environment for the other hosts (the names; their values travel inside Hydra)
# HYDRA_LAUNCHER_EXTRA_ARGS: ssh asks no questions and gives up in time; host keys are your own ssh's policy
HYDRA_LAUNCHER_EXTRA_ARGS='-o BatchMode=yes -o ConnectTimeout=10' \
mpiexec \
    -n 3 \
    -hosts gpu01:2,gpu02:1 \
    -bind-to none \
    -genvlist HOROVOD_CYCLE_TIME,PATH \
    hvdtrain run digits
