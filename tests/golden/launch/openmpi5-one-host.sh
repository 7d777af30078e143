# launcher: Open MPI 5.0.11
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -np 2: the number of ranks
# --map-by slot: one host is filled after the other: neighbours in the ring share it
# --bind-to none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# --mca btl_base_warn_component_unused 0: no warning for each network card that is not there
mpirun \
    -np 2 \
    --map-by slot \
    --bind-to none \
    --mca btl_base_warn_component_unused 0 \
    hvdtrain run digits
