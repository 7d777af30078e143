"""One module per question that a user asks; each is callable from Python and from the command line.

from hvdtrain.diagnostics import preflight           # are the hosts of a job alike and ready?
"""
