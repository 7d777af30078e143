# launcher: Intel MPI (Hydra) 2021.9
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -n 2: the number of ranks
# I_MPI_PIN: a rank and Horovod's background thread must not share one core, to which the default would bind both
I_MPI_PIN=0 \
mpiexec \
    -n 2 \
    hvdtrain run digits
