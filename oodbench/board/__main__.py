"""python -m oodbench.board"""

from oodbench.board.cli import app

if __name__ == "__main__":
    app()
