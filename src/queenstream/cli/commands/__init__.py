"""The commands of ``queen``, one module each; larger ones have a folder beside this one."""
