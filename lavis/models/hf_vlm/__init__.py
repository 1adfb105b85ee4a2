"""`hf_vlm`: any `AutoModelForImageTextToText` of Transformers, with its processor and peft's adapters, as the student.

options.py   every key of the config's `model:` section, its default and its checks
loading.py   config, processor and weights of a folder or hub id; what cannot be a student is refused here
chat.py      from a question to the model's inputs, through its own chat template
logps.py     log-probabilities of answers, the prompt computed once
adapters.py  where peft's adapters go, what fits them, and the hash of the base that they belong to
hf_vlm.py    the student
tiny.py      python -m lavis.models.hf_vlm.tiny: a tiny random folder of any tested family
memory.py    the peak of memory of a step, predicted without weights (python -m lavis.models.memory)
shadows.py   tensors without numbers, on which that step runs
export.py    python -m lavis.models.hf_vlm.export: a run's checkpoint as a folder of peft
"""
