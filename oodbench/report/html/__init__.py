"""One page to read and to send: what it shows, and how it is made and served.

It imports what `report` imports.
"""
