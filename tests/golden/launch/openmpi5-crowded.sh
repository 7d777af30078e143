# launcher: Open MPI 5.0.11
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# -np 4: the number of ranks
# --map-by slot:OVERSUBSCRIBE: 4 ranks on 2 cores are meant, and no mistake
# --bind-to none: a rank and Horovod's background thread must not share one core, to which the default would bind both
# --mca mpi_yield_when_idle 1: 4 ranks and as many background threads on 2 cores: waiting must yield
# --mca btl_base_warn_component_unused 0: no warning for each network card that is not there
# OMPI_ALLOW_RUN_AS_ROOT, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM, PRTE_ALLOW_RUN_AS_ROOT, PRTE_ALLOW_RUN_AS_ROOT_CONFIRM: Open MPI refuses to run as root unless it is told to
OMPI_ALLOW_RUN_AS_ROOT=1 \
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
PRTE_ALLOW_RUN_AS_ROOT=1 \
PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
mpirun \
    -np 4 \
    --map-by slot:OVERSUBSCRIBE \
    --bind-to none \
    --mca mpi_yield_when_idle 1 \
    --mca btl_base_warn_component_unused 0 \
    hvdtrain run 'a file.py'
