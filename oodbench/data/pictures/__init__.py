"""Pictures: folders of files, drawings, and augmentation."""
