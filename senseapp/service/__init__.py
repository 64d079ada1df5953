"""What pages and the command line call: one call per user action. No torch at import, no Streamlit."""

from senseapp.service.access import configured_data_roots, uploads_folder
from senseapp.service.backend import Backend, backend_at, close_backends
from senseapp.service.checkpoint_report import CheckpointCandidate, CheckpointFit, CheckpointReport, MismatchRow
from senseapp.service.default_targets import default_targets
from senseapp.service.execution import execute
from senseapp.service.headline import headline, headline_level, shown_metric
from senseapp.service.image_report import PreviewReport, SeenPicture, sample_zip
from senseapp.service.leaderboard import LeaderboardRow
from senseapp.service.run_outputs import write_outputs
from senseapp.service.run_room import DiskUse
from senseapp.service.run_task import RunObserver
from senseapp.service.same_model import require_same_model
from senseapp.service.sensitivity_table import COLUMNS, sensitivity_csv, sensitivity_rows
from senseapp.service.service import LOCAL_OWNER, Service
from senseapp.service.session import AnalysisSession, OpenSession, open_local_session
from senseapp.service.strongest_search import DropLimit
from senseapp.service.target_file import write_target_file
from senseapp.service.upload_room import UploadLimits

__all__ = [
    "COLUMNS",
    "LOCAL_OWNER",
    "AnalysisSession",
    "Backend",
    "CheckpointCandidate",
    "CheckpointFit",
    "CheckpointReport",
    "DiskUse",
    "DropLimit",
    "LeaderboardRow",
    "MismatchRow",
    "OpenSession",
    "PreviewReport",
    "RunObserver",
    "SeenPicture",
    "Service",
    "UploadLimits",
    "backend_at",
    "close_backends",
    "configured_data_roots",
    "default_targets",
    "execute",
    "headline",
    "headline_level",
    "open_local_session",
    "require_same_model",
    "sample_zip",
    "sensitivity_csv",
    "sensitivity_rows",
    "shown_metric",
    "uploads_folder",
    "write_outputs",
    "write_target_file",
]
