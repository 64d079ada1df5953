"""Work in a process of its own: what measures takes no time from the pages, and cannot take the server with it."""

from senseapp.service.job_process.pool import JobProcesses
from senseapp.service.job_process.process import JobProcess, cluster_lost
from senseapp.service.job_process.session import ProcessSession

__all__ = ["JobProcess", "JobProcesses", "ProcessSession", "cluster_lost"]
