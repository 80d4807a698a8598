"""Tables, figures and pages of results, with errors and caveats: `python -m oodbench.report`."""
