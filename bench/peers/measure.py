#!/usr/bin/env python3
"""Runs a command; writes its seconds and its peak of resident memory in MiB to a file, what it printed beside it.
Usage: measure.py OUT.json COMMAND..."""
import json
import resource
import subprocess
import sys
import time

out, *command = sys.argv[1:]
start = time.perf_counter()
with open(out + ".out", "wb") as printed, open(out + ".err", "wb") as said:
    code = subprocess.run(command, stdout=printed, stderr=said).returncode
seconds = time.perf_counter() - start
if code:
    sys.exit(open(out + ".err").read())
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
json.dump({"seconds": seconds, "peak_mib": peak}, open(out, "w"))
