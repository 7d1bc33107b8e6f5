"""Access to one Linux box: processes, containment, GPUs, leases, disks, clocks, files. The only place with OS calls.

Standard library only: this package runs on boxes where nothing can be installed.
"""
