"""Checkpoints that survive anything: written whole or not at all, and verified before a value of theirs is used.

| module | noun |
|---|---|
| `tensorfile` | one safetensors file: named tensors, written with its hash, read against what is expected |
| `parts` | a large entry in several files, and the threads for them |
| `manifest` | what a checkpoint says about itself, sealed by its own digest |
| `format` | a directory of those: write it, read it, check it |
| `store` | many such directories: publish, find the newest valid one, keep the right ones (root only) |
| `snapshot` | a copy of the state that the steps can leave behind |
| `writer` | one save in flight |
| `delivery` | from one reader to every rank (collective) |
| `manager` | when, who, and what a failure means (collective) |
| `weights` | a model's weights in and out: `--init-from` and `hvdtrain export` |
"""
