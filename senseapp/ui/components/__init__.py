"""Parts of pages: each shows one thing, and returns what a person chose."""
