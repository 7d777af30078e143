# launcher: SLURM 22.05.8
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# --mpi=pmi2: how the ranks' MPI finds the others; without it each is rank 0 of 1
# --ntasks=2: the number of ranks
# --cpu-bind=none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# --kill-on-bad-exit=0: ranks that stop with a checkpoint (75) end one after the other; when one fails, hvdtrain ends the others
# --export=HOME,HOROVOD_CYCLE_TIME,PATH: environment for the ranks (the names; their values travel inside SLURM)
srun \
    --mpi=pmi2 \
    --ntasks=2 \
    --cpu-bind=none \
    --kill-on-bad-exit=0 \
    --export=HOME,HOROVOD_CYCLE_TIME,PATH \
    hvdtrain run digits
