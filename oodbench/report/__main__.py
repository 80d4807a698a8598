"""python -m oodbench.report"""

from oodbench.report.cli import app

if __name__ == "__main__":
    app()
