# launcher: SLURM 22.05.8
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# --mpi=pmi2: how the ranks' MPI finds the others; without it each is rank 0 of 1
# --ntasks=4: the number of ranks
# --nodes=2: no host without ranks takes part
# --nodelist=gpu01,gpu02: the hosts
# --ntasks-per-node=2: how many each gets
# --distribution=block: one host is filled after the other: neighbours in the ring share it
# --cpu-bind=none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# --kill-on-bad-exit=0: ranks that stop with a checkpoint (75) end one after the other; when one fails, hvdtrain ends the others
# --export=HOME,HOROVOD_CYCLE_TIME,HVDTRAIN_NETWORK,MINE,PATH: environment for the ranks (the names; their values travel inside SLURM)
# HVDTRAIN_NETWORK: each rank finds its own interface in it for Gloo and NCCL
HVDTRAIN_NETWORK=10.1.0.0/16 \
srun \
    --mpi=pmi2 \
    --ntasks=4 \
    --nodes=2 \
    --nodelist=gpu01,gpu02 \
    --ntasks-per-node=2 \
    --distribution=block \
    --cpu-bind=none \
    --kill-on-bad-exit=0 \
    --export=HOME,HOROVOD_CYCLE_TIME,HVDTRAIN_NETWORK,MINE,PATH \
    hvdtrain run digits
