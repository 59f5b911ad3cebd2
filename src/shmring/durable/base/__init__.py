"""What the journal and the queues share.

=================  ===========================================================
``files``          the one entry point to the disk, and replacing a file in one step
``frames``         headers of files and of their parts: written, checked, found
``items``          items packed for a file, found in it, read ahead
``group_commit``   threads that flush at the same time share one sync
=================  ===========================================================

A new kind of queue builds on this: it adds a format, and its view of the items in the queue.
"""
