"""Check of one file against another, whoever made them."""
