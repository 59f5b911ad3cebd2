"""One file a transport. Each has the same functions, as far as the transport can:

``link()`` makes what both processes need and removes it afterwards; ``send`` and
``receive`` pass single messages, ``send_batches`` and ``receive_batches`` batches,
``ping`` and ``pong`` measure the round trip. Senders return the moment they began,
receivers the moment they had the last byte (both on CLOCK_MONOTONIC).
"""
