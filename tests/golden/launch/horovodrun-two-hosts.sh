# launcher: Horovod 0.28.1 over Open MPI 5.0.11
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# horovodrun itself adds `-mca pml ob1` (no UCX), accepts unknown host keys when it tests ssh, and opens services that suit a trusted network only: prefer --launcher mpirun
# -np 4: the number of ranks
# -H gpu01:2,gpu02:2: the hosts in the order of the ranks, with how many each gets
# --disable-cache: hosts are tested now, not taken from an hour ago
# --mpi: ranks find each other through MPI; under Gloo exit statuses get lost
# --network-interfaces ib0: this host's interface in 10.1.0.0/16; horovodrun needs it to be called the same on all hosts
# '--binding-args=--bind-to none --map-by slot': a rank and Horovod's background thread must not share one core, to which the default would bind both; horovodrun would say -bind-to, which Open MPI 5 takes for a program
# '--mpi-args=--prtemca plm_ssh_args '"'"'-o BatchMode=yes -o ConnectTimeout=10'"'"'': for mpirun: ssh asks no questions and gives up in time; host keys are your own ssh's policy
# OMPI_ALLOW_RUN_AS_ROOT, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM, PRTE_ALLOW_RUN_AS_ROOT, PRTE_ALLOW_RUN_AS_ROOT_CONFIRM: Open MPI refuses to run as root unless it is told to
# HVDTRAIN_NETWORK: each rank finds its own interface in it for Gloo and NCCL
env -i HOME="$HOME" HOROVOD_CYCLE_TIME="$HOROVOD_CYCLE_TIME" MINE="$MINE" PATH="$PATH" \
OMPI_ALLOW_RUN_AS_ROOT=1 \
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
PRTE_ALLOW_RUN_AS_ROOT=1 \
PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
HVDTRAIN_NETWORK=10.1.0.0/16 \
horovodrun \
    -np 4 \
    -H gpu01:2,gpu02:2 \
    --disable-cache \
    --mpi \
    --network-interfaces ib0 \
    '--binding-args=--bind-to none --map-by slot' \
    '--mpi-args=--prtemca plm_ssh_args '"'"'-o BatchMode=yes -o ConnectTimeout=10'"'"'' \
    hvdtrain run digits
