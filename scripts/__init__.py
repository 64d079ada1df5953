"""Programs that make the files shipped with senseapp; run as ``python -m scripts.NAME`` from the repository."""
