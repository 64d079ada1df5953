"""Long work in the background: one worker, a bounded queue, progress, cancel. No torch, no Streamlit."""

from senseapp.jobs.control import JobCancelled, JobControl
from senseapp.jobs.progress import Progress
from senseapp.jobs.runner import JobRunner

__all__ = ["JobCancelled", "JobControl", "JobRunner", "Progress"]
