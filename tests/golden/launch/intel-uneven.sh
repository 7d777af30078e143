# launcher: Intel MPI (Hydra) 2021.9
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -n 3: the number of ranks
# -hosts gpu01:2,gpu02:1: the hosts in the order of the ranks, with how many each gets
# -genvlist HOROVOD_CYCLE_TIME,I_MPI_PIN,PATH: environment for the other hosts (the names; their values travel inside Hydra)
# I_MPI_PIN: a rank and Horovod's background thread must not share one core, to which the default would bind both
# HYDRA_LAUNCHER_EXTRA_ARGS: ssh asks no questions and gives up in time; host keys are your own ssh's policy
I_MPI_PIN=0 \
HYDRA_LAUNCHER_EXTRA_ARGS='-o BatchMode=yes -o ConnectTimeout=10' \
mpiexec \
    -n 3 \
    -hosts gpu01:2,gpu02:1 \
    -genvlist HOROVOD_CYCLE_TIME,I_MPI_PIN,PATH \
    hvdtrain run digits
