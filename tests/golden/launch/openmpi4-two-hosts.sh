# launcher: Open MPI 4.1.4
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -np 4: the number of ranks
# --host gpu01:2,gpu02:2: the hosts in the order of the ranks, with how many each gets
# --map-by slot: one host is filled after the other: neighbours in the ring share it
# --bind-to none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# --mca btl_base_warn_component_unused 0: no warning for each network card that is not there
# --mca btl_tcp_if_include 10.1.0.0/16: where MPI uses TCP, on this network (it does not force TCP)
# --mca oob_tcp_if_include 10.1.0.0/16: the launcher's own daemons talk on this network
# --mca plm_rsh_args '-o BatchMode=yes -o ConnectTimeout=10': ssh asks no questions and gives up in time; host keys are your own ssh's policy
# -x (3 times): environment for the other hosts (the name; its value travels inside Open MPI)
# HVDTRAIN_NETWORK: each rank finds its own interface in it for Gloo and NCCL
HVDTRAIN_NETWORK=10.1.0.0/16 \
mpirun \
    -np 4 \
    --host gpu01:2,gpu02:2 \
    --map-by slot \
    --bind-to none \
    --mca btl_base_warn_component_unused 0 \
    --mca btl_tcp_if_include 10.1.0.0/16 \
    --mca oob_tcp_if_include 10.1.0.0/16 \
    --mca plm_rsh_args '-o BatchMode=yes -o ConnectTimeout=10' \
    -x HOROVOD_CYCLE_TIME \
    -x HVDTRAIN_NETWORK \
    -x PATH \
    hvdtrain run digits
