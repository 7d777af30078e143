# launcher: Intel MPI (Hydra) 2021.9
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# warning: --network 10.1.0.0/16 reaches Gloo, NCCL and Hydra itself; MPI's own traffic takes what UCX or libfabric choose (UCX_NET_DEVICES, FI_TCP_IFACE)
# -n 4: the number of ranks
# -hosts gpu01:2,gpu02:2: the hosts in the order of the ranks, with how many each gets
# -iface ib0: the launcher's proxies call back on 10.1.0.0/16
# -genvlist HOROVOD_CYCLE_TIME,HVDTRAIN_NETWORK,I_MPI_PIN,MINE,PATH: environment for the other hosts (the names; their values travel inside Hydra)
# I_MPI_PIN: a rank and Horovod's background thread must not share one core, to which the default would bind both
# HVDTRAIN_NETWORK: each rank finds its own interface in it for Gloo and NCCL
# HYDRA_LAUNCHER_EXTRA_ARGS: ssh asks no questions and gives up in time; host keys are your own ssh's policy
I_MPI_PIN=0 \
HVDTRAIN_NETWORK=10.1.0.0/16 \
HYDRA_LAUNCHER_EXTRA_ARGS='-o BatchMode=yes -o ConnectTimeout=10' \
mpiexec \
    -n 4 \
    -hosts gpu01:2,gpu02:2 \
    -iface ib0 \
    -genvlist HOROVOD_CYCLE_TIME,HVDTRAIN_NETWORK,I_MPI_PIN,MINE,PATH \
    hvdtrain run digits
