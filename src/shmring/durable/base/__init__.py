"""Code that the journal and the queues share: access to the disk, frames in files, items."""
