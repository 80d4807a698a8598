"""Users' tables: files are read as cells, and cells as numbers, dates or texts."""
