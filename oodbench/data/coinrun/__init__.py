"""CoinRun levels as a dataset: simulator, planner, policy and the shards they are stored in."""
