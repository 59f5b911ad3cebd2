"""What the journal and the queues share.

=================  ===========================================================
``files``          the one entry point to the disk, and replacing a file in one step
``lockfile``       one owner at a time, whose death the kernel notices
``frames``         headers of files and of their parts: written, checked, found
``items``          items packed for a file, found in it, read ahead
``group_commit``   threads that flush at the same time share one sync
=================  ===========================================================

A queue of a new kind begins here: it adds a format, and what of it is in the queue.
"""
