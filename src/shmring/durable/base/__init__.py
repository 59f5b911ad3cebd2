"""Code that the journal and the queues share: the disk, frames of files, items."""
