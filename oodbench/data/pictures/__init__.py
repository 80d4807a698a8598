"""Pictures: files and their pixels, folders of files, published datasets, and augmentation."""
