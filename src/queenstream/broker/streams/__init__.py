"""Streams: windows over queues, leased like messages.

``definition`` says what a stream is, ``assigning`` which message belongs to which window, ``running`` when
that is done. A closed window is a message in a queue of the stream's own; from there on it is popped,
acknowledged and retried like any other.
"""
