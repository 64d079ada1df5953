"""How an int8 file rounds, step by step; each step is fitted to calibration images, what was done before it given.

1. :mod:`.ranges` of activations, and why these harm.
2. :mod:`.weights`: integers for each product (:mod:`.products`), and its bias.
3. :mod:`.qdq` inserts QuantizeLinear and DequantizeLinear around all nodes but those in float.

:mod:`senseapp.runtimes.onnxruntime.int8` takes these steps in order, each where files do less harm with it, and
:mod:`senseapp.prove.mixed_precision` searches for nodes in float.
"""
