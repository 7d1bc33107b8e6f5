"""Other people's code, copied verbatim with its licence so that a box needs nothing but Python.

`pynvml.py`: nvidia-ml-py 13.615.71 (licence in `LICENSE.pynvml`). Only the probe child imports it; never edit it.
"""
