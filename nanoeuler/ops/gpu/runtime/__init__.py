"""The runtime: all that stands between the engine and the GPU, from the bottom up.

``driver``    the GPU, its streams, and errors
``memory``    arrays in its memory
``compiler``  machine code out of Triton functions, kept on disk
``launch``    calls of kernels
``graph``     a whole step of them as one
``profile``   where a step's time goes
``picture``   the same, drawn
"""
