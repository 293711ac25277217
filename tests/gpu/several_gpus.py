"""Several GPUs against one: real ScienceWorld GRPO with LoRA and vLLM at equal effective batch.

The quickstart's model first clones gold paths, so that it acts and rewards differ. Then arms train from it, each
in processes of its own through `accelerate launch` with the shipped configurations. Every step is timed by part; ranks
must end with equal weights. An arm ends by itself before its time is over. Arms are

    one          alone, vLLM in process
    ddp:N        N ranks, each with the whole model and a vLLM of its own
    fsdp2:N      N ranks with sharded weights, each with a vLLM of its own
    server:N+M   N ranks, and a vLLM server on M other GPUs

    python tests/gpu/several_gpus.py --out "$OUT" --steps 20 --seconds 150 --arms one ddp:2 ddp:4 fsdp2:4 server:2+2

Needs as many GPUs and the environment of `stack.sh env` (VLLM_ENABLE_V1_MULTIPROCESSING=0). The last line is JSON; so
is OUT/several_gpus.json, beside the logs and metrics of all arms.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback

import cope_gym
from cope_gym.evaluate.panels import Panel
from cope_train.config import CoPEConfig
from cope_train.config_file import FOLDER
from cope_train.models import quickstart_model
from cope_train.quickstart import (
    CATEGORY,
    OPTIONS,
    SYSTEM,
    Quickstart,
    clone_experts,
    collect_gold,
    prepare_environment,
)
from cope_train.quickstart import lora as adapter
from cope_train.run_folder import read_metrics
from cope_train.trainer import CoPETrainer

ROWS, MICRO, GROUP, TURNS, TURN_TOKENS = 64, 8, 8, 10, 20
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
ONE_HOST = {"VLLM_HOST_IP": "127.0.0.1"}  # where no network is, vLLM finds no address of its own
SERVER_PORT = 8650
PARTS = ("generate", "environment", "environment_waiting", "rollout", "update", "sync")


class Arm(NamedTuple):
    """What an arm's name says."""

    kind: str
    ranks: int
    servers: int

    @classmethod
    def of(cls, name: str) -> Arm:
        kind, _, count = name.partition(":")
        ranks, _, servers = (count or "1").partition("+")
        return cls(kind, int(ranks), int(servers or 0))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "runs/several_gpus")))
    parser.add_argument(
        "--work", type=Path, default=Path("runs/several_gpus"), help="Checkpoints and models stay here."
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=150.0, help="An arm's time, start-up included.")
    parser.add_argument("--arms", nargs="+", default=["one", "ddp:2"])
    parser.add_argument("--gold", type=int, default=48, help="Gold paths to clone.")
    parser.add_argument("--no-vllm", action="store_true", help="Sample with Transformers, to try the script on CPU.")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.arm:
        train(options)
        return 0
    service = prepare_environment()
    tasks = [task.id for task in service.client.tasks("sciworld", "train") if task.category == CATEGORY]
    start = Quickstart(options.work, service, Panel("sciworld", "none", "train", (), OPTIONS), tasks)
    if not (options.work / "warm_start" / "config.json").is_file():
        clone_experts(start, collect_gold(start, options.gold), quickstart_model(), 3.0)
    torch.cuda.empty_cache()
    codes = {arm: run(arm, options) for arm in options.arms}
    result = summary(options, codes)
    (options.out / "several_gpus.json").write_text(json.dumps(result, indent=1))
    print(json.dumps({key: value for key, value in result.items() if key != "steps"}), flush=True)
    equal = all(result[arm]["ranks_equal"] for arm in codes if arm in result)
    return 0 if equal and all(code == 0 for code in codes.values()) else 1


def run(arm: str, options: argparse.Namespace) -> int:
    """Runs an arm in processes of its own, and ends them all."""
    ends = time.time() + options.seconds
    script = [str(Path(__file__).resolve()), "--arm", arm, "--ends", str(ends), "--out", str(options.out)]
    script += ["--work", str(options.work), "--steps", str(options.steps), *(["--no-vllm"] if options.no_vllm else [])]
    kind, ranks, servers = Arm.of(arm)
    environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **NO_MULTICAST, **ONE_HOST}
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks + servers)))).split(",")
    command = [sys.executable, *script]
    if torch.cuda.is_available():
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[:ranks])
        if kind != "one":
            preset = FOLDER / "accelerate" / f"{'fsdp2' if kind == 'fsdp2' else 'ddp'}.yaml"
            launch = ["-m", "accelerate.commands.launch", "--config_file", str(preset)]
            command = [sys.executable, *launch, "--num_processes", str(ranks), "--main_process_port", "29511", *script]
    elif ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", *script]
    print(f"arm {arm}: {' '.join(command)}", flush=True)
    with (
        (options.out / f"{arm}.log").open("wb") as log,
        vllm_server(options, gpus[ranks : ranks + servers], ends) if servers else contextlib.nullcontext(),
    ):
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(options.seconds + 30)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end(process)
    if code:
        print("\n".join((options.out / f"{arm}.log").read_text(errors="replace").splitlines()[-40:]), flush=True)
    return code


@contextlib.contextmanager
def vllm_server(options: argparse.Namespace, gpus: list[str], ends: float) -> Iterator[None]:
    """`vllm serve` on these GPUs, a copy of the model on each, that takes TRL's weights."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(options.work / "warm_start")]
    command += ["--port", str(SERVER_PORT), "--data-parallel-size", str(len(gpus)), "--gpu-memory-utilization", "0.25"]
    command += ["--max-model-len", "4096", "--dtype", "bfloat16", "--logprobs-mode", "processed_logprobs"]
    command += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    environ = {
        **os.environ,
        **NO_MULTICAST,
        **ONE_HOST,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "VLLM_SERVER_DEV_MODE": "1",
    }
    with (options.out / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while not answers(f"http://127.0.0.1:{SERVER_PORT}/health"):
                if server.poll() is not None or time.time() > ends:
                    raise SystemExit(f"the vLLM server did not start: {options.out / 'server.log'}")
                time.sleep(1)
            yield
        finally:
            end(server)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its ranks, which are sessions of their own: only the launcher that is asked to ends them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(20)


def answers(url: str) -> bool:
    """Whether something is there."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


class Steps(TrainerCallback):
    """Times every step, and ends the run on all ranks alike before its time is over."""

    def __init__(self, ends: float) -> None:
        self.ends, self.seconds, self.before, self.longest = ends, [], 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.before)
        # The first step of a run holds compilation; later ones tell how long another one takes.
        self.longest = max(self.seconds[1:] or self.seconds)
        over = torch.tensor(float(time.time() + 1.5 * self.longest + 8 > self.ends))
        if torch.distributed.is_initialized():
            over = over.cuda() if torch.cuda.is_available() else over
            torch.distributed.all_reduce(over, torch.distributed.ReduceOp.MAX)
        control.should_training_stop |= bool(over.item())


def train(options: argparse.Namespace) -> None:
    """One rank of one arm."""
    begun = time.time()
    kind, ranks, _ = Arm.of(options.arm)
    folder = options.work / options.arm
    if int(os.environ.get("RANK", "0")) == 0:
        shutil.rmtree(folder, ignore_errors=True)
    tasks = [task.id for task in cope_gym.tasks("sciworld", "train").infos if task.category == CATEGORY]
    steps = Steps(options.ends)
    gpu = torch.cuda.is_available()
    args = CoPEConfig(
        output_dir=str(folder),
        environment="sciworld",
        environment_options=dict(OPTIONS),
        action_format="react",
        reward="score",
        max_turns=TURNS,
        max_turn_tokens=TURN_TOKENS,
        max_episode_tokens=2048,
        first_observation_chars=800,
        observation_chars=200,
        per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=ROWS // MICRO // ranks,
        num_generations=GROUP,
        max_steps=options.steps,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        use_vllm=not options.no_vllm,
        vllm_mode="server" if kind == "server" else "colocate",
        vllm_server_port=SERVER_PORT,
        vllm_gpu_memory_utilization=0.25,
        vllm_max_model_length=4096,
        gradient_checkpointing=False,
        bf16=gpu,
        use_cpu=not gpu,
        model_init_kwargs={"dtype": "bfloat16" if gpu else "float32"},
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    model = options.work / "warm_start"
    trainer = CoPETrainer(str(model), args, tasks, system_prompt=SYSTEM, peft_config=adapter(), callbacks=[steps])
    if not options.no_vllm:
        time_sync(trainer)
    ready = time.time()
    trainer.train()
    rank = trainer.accelerator.process_index
    learnt = [p for p in trainer.model.parameters() if p.requires_grad]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in learnt]
    weights = torch.cat([p.detach().flatten().float().cpu() for p in whole])
    facts = {
        "steps": trainer.state.global_step,
        "start_up_seconds": ready - begun,
        "step_seconds": steps.seconds,
        "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16],
        "weights_norm": weights.norm().item(),
        "peak_allocated_gb": torch.cuda.max_memory_allocated() / 2**30 if gpu else None,
        "used_gb": (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) / 2**30 if gpu else None,
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "index": torch.cuda.current_device() if gpu else None,
    }
    (options.work / f"{options.arm}_rank{rank}.json").write_text(json.dumps(facts))
    trainer.accelerator.wait_for_everyone()
    if rank == 0:
        shutil.copy(folder / "metrics.jsonl", options.out / f"{options.arm}.metrics.jsonl")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def time_sync(trainer: CoPETrainer) -> None:
    """Adds the seconds of weight synchronisation to the metrics."""
    inner = trainer.vllm_generation.sync_weights

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = inner(*args, **kwargs)
        torch.cuda.synchronize()
        trainer._metrics["train"]["seconds/sync"].append(time.perf_counter() - started)
        return result

    trainer.vllm_generation.sync_weights = timed


def summary(options: argparse.Namespace, codes: dict[str, int]) -> dict[str, Any]:
    """What the arms have shown, side by side; medians without the first two steps."""
    result: dict[str, Any] = {"rows": ROWS, "turns": TURNS, "turn_tokens": TURN_TOKENS, "exit": codes, "steps": {}}
    for arm in codes:
        rows = [r for r in read_metrics(options.out / f"{arm}.metrics.jsonl") if "loss" in r]
        ranks = [json.loads(path.read_text()) for path in sorted(options.work.glob(f"{arm}_rank*.json"))]
        if not rows or not ranks:
            continue
        result["steps"][arm] = rows
        later = rows[2:] or rows
        result[arm] = {
            "steps": ranks[0]["steps"],
            "step_seconds": statistics.median(ranks[0]["step_seconds"][2:] or ranks[0]["step_seconds"]),
            **{f"{part}_seconds": median(later, f"seconds/{part}") for part in PARTS},
            "sampled_tokens_per_episode": median(later, "episodes/sampled_tokens"),
            "turns_per_episode": median(later, "episodes/turns"),
            "success_first_last": [rows[0].get("episodes/success"), rows[-1].get("episodes/success")],
            "loss_first_last": [rows[0]["loss"], rows[-1]["loss"]],
            "importance_ratio": median(later, "sampling/importance_sampling_ratio/mean"),
            "ranks": ranks,
        }
        result[arm]["ranks_equal"] = len(ranks) == Arm.of(arm).ranks and len({rank["weights"] for rank in ranks}) == 1
    for arm in set(result) & set(codes) - {"one"} if "one" in result else ():
        for part in ("step", "rollout", "update"):
            seconds = f"{part}_seconds"
            result[arm][f"speed_up_{part}"] = result["one"][seconds] / result[arm][seconds]
    return result


def median(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else None


if __name__ == "__main__":
    sys.exit(main())
