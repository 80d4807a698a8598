"""Our sweeps against DomainBed's: python -m oodbench.race (see `oodbench.bench.race`)."""

from oodbench.bench.race import app

if __name__ == "__main__":
    app()
