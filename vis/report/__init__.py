"""The page of one or more runs: reading of run folders, figures, and the HTML around them."""
