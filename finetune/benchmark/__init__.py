"""Measurements of the toolkit against what others do with the same model and the same texts.

``command.run`` is `finetune bench`. A phase (``training``, ``prediction``, ``spans``, ``nested``)
gives cases; a case has arms, which take turns in one process, so that a busy machine slows all of
them or none. What an arm's numbers mean is said in ``rows``; what is drawn, in ``lengths``.
"""
