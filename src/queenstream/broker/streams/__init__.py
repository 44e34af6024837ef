"""Streams: windows over queues, leased like messages.

``model`` says what a stream is, ``assign`` which message belongs to which window, and ``runner`` when that is
done. A closed window is a message in a queue of the stream's own; from there on it is popped,
acknowledged and retried like any other.
"""
