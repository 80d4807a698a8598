"""Files of datasets from elsewhere: mirrors, packages and copies in Parquet."""
