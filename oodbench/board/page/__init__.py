"""The page of a board: its tables as Markdown, and an HTML file in which they can be computed again."""
