"""Rule reward for the generated arithmetic prompts (verl's `reward.custom_reward_function`). Standard library only.

A model with random weights never answers correctly. The share of digit characters keeps rewards within a group apart:
without it every GRPO advantage would be 0 and the update a no-op.
"""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """1 for the right sum after `####`, else half the share of digits in the text."""
    text = solution_str or ""
    correct = text.split("####")[-1].strip() == str(ground_truth)
    digits = sum(char.isdigit() for char in text) / max(1, len(text))
    return {"score": 1.0 if correct else 0.5 * digits, "acc": float(correct)}
