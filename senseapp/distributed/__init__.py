"""One run on many machines, through Ray: who does what (the plan), and how (tasks that may be done again)."""
