# launcher: SLURM 22.05.8
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# --mpi=pmix: how the ranks' MPI finds the others; without it each is rank 0 of 1
# --ntasks=3: the number of ranks
# --nodes=2: no host without ranks takes part
# --nodelist=gpu01,gpu01,gpu02: the host of each rank, in the order of the ranks
# --distribution=arbitrary: which is to be kept, as the hosts get different numbers
# --cpu-bind=none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# --kill-on-bad-exit=0: ranks that stop with a checkpoint (75) end one after the other; when one fails, hvdtrain ends the others
# --export=HOME,HOROVOD_CYCLE_TIME,PATH,PMIX_MCA_psec: environment for the ranks (the names; their values travel inside SLURM)
# PMIX_MCA_psec: ranks prove who they are by their user, as Open MPI from PyPI has no munge and would complain of it
PMIX_MCA_psec='^munge' \
srun \
    --mpi=pmix \
    --ntasks=3 \
    --nodes=2 \
    --nodelist=gpu01,gpu01,gpu02 \
    --distribution=arbitrary \
    --cpu-bind=none \
    --kill-on-bad-exit=0 \
    --export=HOME,HOROVOD_CYCLE_TIME,PATH,PMIX_MCA_psec \
    hvdtrain run digits
