"""The Runs page: list, import, leaderboard."""
