"""`finetune bench`: speed and memory of this toolkit and of others with the same model and texts.

A phase (train, predict, pretrain, onnx) has cases. A case has arms, which take
turns in one process, so that a busy machine slows all of them equally (``measure``).
"""
