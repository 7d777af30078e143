"""From what the user wants started to the command that starts it: pure builders, and one function that executes.

Nothing here imports torch, MPI or Horovod, so every launching verb works on a login node.

    spec = LaunchSpec(command=("hvdtrain", "run", "digits"), size=2, cores_per_host=8)      # hvdtrain.launch.spec
    tool = find_tool("mpirun", env)                                                         # hvdtrain.launch.tool
    invocation = mpirun.build(spec, tool, env)                                              # hvdtrain.launch.mpirun
    print(transcript(invocation))                                                           # what --dry-run shows
    status = execute(invocation, env)                                                       # hvdtrain.launch.execution
"""
