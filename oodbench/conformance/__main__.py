"""Whether a method keeps the contract: python -m oodbench.conformance NAME --plugin MODULE."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.conformance.cli import app

if __name__ == "__main__":
    app()
