"""python -m oodbench.board"""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.board.cli import app

if __name__ == "__main__":
    app()
