# launcher: Horovod 0.28.1 over Open MPI 5.0.11
# threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)
# horovodrun itself adds `-mca pml ob1` (no UCX), accepts unknown host keys when it tests ssh, and opens services that suit a trusted network only: prefer --launcher mpirun
# -np 2: the number of ranks
# --mpi: ranks find each other through MPI; under Gloo exit statuses get lost
# '--binding-args=--bind-to none --map-by slot': a rank and Horovod's background thread must not share one core, to which the default would bind both; horovodrun would say -bind-to, which Open MPI 5 takes for a program
horovodrun \
    -np 2 \
    --mpi \
    '--binding-args=--bind-to none --map-by slot' \
    hvdtrain run digits
