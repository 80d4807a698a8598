"""Tables of people: files read as cells, and columns as inputs."""
