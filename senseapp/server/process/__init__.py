"""The job process and its protocol."""
