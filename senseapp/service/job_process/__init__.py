"""Work in a process of its own: what measures takes no time from the pages, and cannot take the server with it."""

from senseapp.service.job_process.pool import JobProcesses, carry_out_on_cluster
from senseapp.service.job_process.process import JobProcess, cluster_lost

__all__ = ["JobProcess", "JobProcesses", "carry_out_on_cluster", "cluster_lost"]
