# launcher: MPICH (Hydra) 4.2.3
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -n 2: the number of ranks
# -bind-to none: a rank and Horovod's background thread must not share one core, to which the default would bind both
mpiexec \
    -n 2 \
    -bind-to none \
    hvdtrain run digits
