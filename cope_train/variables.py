"""The environment variables of CoPE's own launcher as overrides, so that one extra variable makes a variant.

    TE_ENABLE=True TE_LAMBDA=0.01 cope launch sciworld/cope

Order: the file, then these variables, then KEY=VALUE on the command line. A variable of CoPE's that has no counterpart
here is refused unless it has the value that changes nothing, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cope_gym.errors import InputError

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


def _flag(text: str) -> str:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError("True or False")
    return str(word in _TRUE).lower()


def _group_norm(text: str) -> str:
    return "cope" if _flag(text) == "true" else "uniform"


# CoPE's name → option here, and how the value is written.
OPTIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "ACTION_FORECAST_ENABLE": ("forecast", _flag),
    "ACTION_FORECAST_COEF": ("forecast_coef", str),
    "ACTION_FORECAST_K": ("forecast_horizon", str),
    "ACTION_FORECAST_GATE": ("forecast_gate", str),
    "ACTION_FORECAST_SKIP_INVALID": ("forecast_skip_invalid", _flag),
    "ACTION_FORECAST_GROUP_NORM": ("forecast_weights", _group_norm),
    "ACTION_FORECAST_MAX_LENGTH": ("branch_max_length", str),
    "ACTION_FORECAST_LAYOUT": ("forecast_layout", str),
    "ACTION_FORECAST_TARGETS": ("forecast_targets", str),
    "ACTION_FORECAST_BALANCE_CALLS": ("forecast_balance_calls", _flag),
    "ACTION_FORECAST_LENGTH_NORM": ("forecast_length_norm", _flag),
    "ACTION_FORECAST_SKIP_NO_CALL": ("forecast_skip_no_call", _flag),
    "ACTION_FORECAST_REQUIRE_ACTION": ("forecast_require_action", _flag),
    "ACTION_FORECAST_NULL_TASKS_FILE": ("forecast_null_tasks", str),
    "ACTION_FORECAST_LR_SCALE": ("forecast_lr_scale", str),
    "TE_ENABLE": ("ensemble", _flag),
    "TE_LAMBDA": ("ensemble_coef", str),
    "TE_ETA": ("ensemble_eta", str),
    "TE_WARMUP_STEPS": ("ensemble_warmup_steps", str),
    "TE_MICRO_BATCH_SIZE_PER_GPU": ("branch_batch_size", str),
    "MODEL_PATH": ("model_name_or_path", str),
    "ROLLOUT_N": ("num_generations", str),
    "APPWORLD_SPLIT": ("split", str),
    "TAU2_TASK_SPLIT": ("split", str),
}
# Value that means the same here, and what to do for another.
FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "ACTION_FORECAST_SUCCESS_THRESHOLD": (("0.5",), "the gate reads info.success, not a threshold"),
    "ACTION_FORECAST_SEQ": (("separate",), "forecasts are never written into the rollout"),
    "SFT_MINI_BATCH_SIZE": ((), "forecasting makes one update a step, with forecast_separate_step too"),
    "TE_MIX": (("fullvocab",), "only the full-vocabulary form is implemented"),
    "TE_KL_TYPE": (("low_var_kl",), "it belongs to the forms that CoPE gave up"),
    "TE_CENTER": (("true", "1"), "it belongs to the forms that CoPE gave up"),
    "TE_TRAJ_SUBSAMPLE": (("1", "1.0"), "every trajectory has branches"),
    "GRPO_FILTER_DEGENERATE": (("0", "false"), "set resample_budget, which plays other tasks instead"),
}
_OLD, _NEW = "PLAN_FORECAST_", "ACTION_FORECAST_"  # the name of before a renaming


def overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns options and their values, as the command line would name them.

    Raises:
        InputError: A value that cannot be read, or a variable that means nothing here.
    """
    found: dict[str, str] = {}
    for name, text in environ.items():
        known = name.replace(_OLD, _NEW, 1) if name.startswith(_OLD) else name
        if known in OPTIONS:
            option, write = OPTIONS[known]
            if text == "" and write is str:
                continue  # CoPE's way to say "none"
            try:
                found[option] = write(text)
            except ValueError as error:
                raise InputError(f"{name}={text!r} is not {error}", type="bad_option") from error
        elif known in FIXED and text.strip().lower() not in ("", *FIXED[known][0]):
            raise InputError(f"{name}={text} has no counterpart: {FIXED[known][1]}; unset it", type="bad_option")
        elif known.startswith((_NEW, "TE_")) and known not in FIXED:
            raise InputError(f"there is no variable {name}; docs/training.md lists them", type="bad_option")
    return found


def as_arguments(options: Mapping[str, str]) -> list[str]:
    """Returns `--key value` for every option."""
    return [word for key, value in options.items() for word in (f"--{key}", value)]
