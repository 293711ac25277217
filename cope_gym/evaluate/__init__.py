"""Evaluation: panels, policies, a resumable runner, statistics and a viewer. None of it needs torch.

```python
from cope_gym import evaluate

panel = evaluate.load("sciworld_quickstart")
```
"""

from __future__ import annotations

from cope_gym.evaluate import endpoint as endpoint  # registers `openai`
from cope_gym.evaluate import scripted as scripted  # registers `gold`, `random`, `do-nothing`, `human`
from cope_gym.evaluate.episode import Rules
from cope_gym.evaluate.panels import Panel, load
from cope_gym.evaluate.policies import Policy, PolicySpec, Prompt, Reply, make, register
from cope_gym.evaluate.runner import Evaluation, conclude, evaluate

__all__ = [
    "Evaluation",
    "Panel",
    "Policy",
    "PolicySpec",
    "Prompt",
    "Reply",
    "Rules",
    "conclude",
    "evaluate",
    "load",
    "make",
    "register",
]
