"""Builds Horovod for the torch, MPI, CUDA and NCCL that are there; standard library only.

The order of the modules: `facts` (what is here) -> `target` (what a build depends on) -> `faults` (what is in the way)
-> `plan` (steps, as data) -> `execution` -> `cache` and `record` (what was built, what is installed). `proof` is the
program on two ranks that ends an installation. `hvdtrain.cli.install` puts them together.
"""
