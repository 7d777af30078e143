"""From what the user wants started to the command that starts it: pure builders, and one function that executes.

Nothing here imports torch, MPI or Horovod, so every launching verb works on a login node.

    hosts = hostfile.parse("gpu01:2,gpu02:2", "-H")               # any dialect
    spec = LaunchSpec(command=("hvdtrain", "run", "digits"), size=4, cores_per_host=8, hosts=hosts)
    choice = select("auto", env)                                  # srun in a SLURM job, else mpirun
    invocation = choice.build(spec, env)                          # one pure builder for each launcher
    print(transcript(invocation))                                 # what --dry-run shows
    ending = execute(invocation, env)                             # the one function that executes
    status = supervise(spec, Policy(max_restarts=3), build=choice.build, env=env, watched=True)
"""
