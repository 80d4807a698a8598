"""Making the data of CoinRun with the game itself; reading them takes `datasets/coinrun.py` alone."""
