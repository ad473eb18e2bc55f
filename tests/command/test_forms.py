"""Launch commands in the forms people keep them in."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logforensics.command import read_command
from logforensics.errors import CommandError
from logforensics.units import GIB

CORE = {"--model-path": "org/m", "--tp-size": 4}

KUBERNETES = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: sglang
          image: lmsysorg/sglang:v0.5.9
          env:
            - name: NCCL_DEBUG
              value: INFO
            - name: HF_TOKEN
              valueFrom: {secretKeyRef: {name: hf, key: token}}
          command: ["python3", "-m", "sglang.launch_server"]
          args:
            - --model-path=org/m
            - --tp   # ranks
            - "4"
            - --port=$(PORT)
          resources:
            limits: {nvidia.com/gpu: "4", memory: 512Gi}
"""
COMPOSE = """
services:
  llm:
    image: lmsysorg/sglang:latest
    environment:
      NCCL_DEBUG: INFO
      CUDA_VISIBLE_DEVICES: "0,1,2,3"
    entrypoint: python3 -m sglang.launch_server
    command: >
      --model-path org/m
      --tp ${TP:-4} --port ${PORT}
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 4, capabilities: [gpu]}]}}}
"""
SYSTEMD = """
[Service]
Environment="NCCL_DEBUG=INFO" EXTRA=
Environment=MODEL=org/m TP=4
ExecStartPre=/bin/true
ExecStart=/opt/venv/bin/python -m sglang.launch_server \\
  --model-path ${MODEL} \\
  --tp ${TP} $EXTRA --port $PORT
Restart=always
"""
RECIPE = """
model: {path: m, container: lmsysorg/sglang:v0.5.8, precision: fp8}
resources: {gpus_per_node: 8, decode_nodes: 2, decode_workers: 1}
backend:
  decode_environment: {NCCL_DEBUG: INFO}
  sglang_config:
    decode: {model-path: org/m, tp-size: 4, trust-remote-code: true, disable-radix-cache: false, port: $PORT}
"""
HELM = """
replicaCount: 1
image: {repository: lmsysorg/sglang, tag: v0.5.9}
model: {path: org/m}
server: {tpSize: 4, port: "{{ .Values.PORT }}"}
resources: {gpu: 4}
"""
ENGINE = """
import os
import sglang as sgl
os.environ["NCCL_DEBUG"] = "INFO"
if __name__ == "__main__":
    common = dict(model_path="org/m", disable_radix_cache=False)
    llm = sgl.Engine(**common, tp_size=int(os.environ.get("TP", 4)), port=choose_port())
"""
POPEN = """
import subprocess
model = "org/" + "m"
subprocess.Popen(["python", "-m", "sglang.launch_server", "--model-path", model, f"--tp={2 + 2}", "--port", str(free_port())])
"""
SYSTEM = 'import os\nos.system("python -m sglang.launch_server --model-path org/m --tp 4 --port $PORT")\n'
DOCKERFILE = """
FROM lmsysorg/sglang:v0.5.9
ENV NCCL_DEBUG=INFO
ENTRYPOINT ["python3", "-m", "sglang.launch_server"]
CMD ["--model-path", "org/m", "--tp", "4", "--port", "$PORT"]
"""
SLURM = """#!/bin/bash
#SBATCH --gpus-per-node=4
#SBATCH --mem=256G
export NCCL_DEBUG=INFO
srun apptainer exec --nv image.sif bash -c "python -m sglang.launch_server --model-path org/m --tp 4 --port \\$PORT"
"""
MARKDOWN = (
    "Run this:\n\n```bash\nexport NCCL_DEBUG=INFO\npython -m sglang.launch_server --model-path org/m --tp 4 --port $PORT\n```\nand wait.\n"
)
UNIT_BY_SCRIPT = "cat > /etc/systemd/system/s.service <<'EOS'\n" + SYSTEMD + "EOS\nsystemctl start s\n"
FORMS = {
    "kubernetes": KUBERNETES,
    "kubernetes json": json.dumps(
        {"spec": {"containers": [{"image": "sglang", "args": ["--model-path", "org/m", "--tp", "4", "--port", "$(PORT)"]}]}}
    ),
    "compose": COMPOSE,
    "systemd": SYSTEMD,
    "a unit written by a script": UNIT_BY_SCRIPT,
    "recipe": RECIPE,
    "helm values": HELM,
    "engine": ENGINE,
    "popen": POPEN,
    "os.system": SYSTEM,
    "dockerfile": DOCKERFILE,
    "slurm": SLURM,
    "markdown": MARKDOWN,
    "tmux": 'tmux new-session -d "python -m sglang.launch_server --model-path org/m --tp 4 --port \\$PORT"',
    "ssh": "ssh node1 'python -m sglang.launch_server --model-path org/m --tp 4 --port $PORT'",
    "uv": "uv run -m sglang.launch_server --model-path org/m --tp 4 --port $PORT",
    "config file": "model-path: org/m\ntp-size: 4\nport: $PORT\n",
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_every_form_gives_the_same_launch(text: str) -> None:
    flags = dict(read_command(text, "0.5.9").flags)
    flags.pop("--trust-remote-code", None)
    assert flags.pop("--port") in ("$PORT", "$(PORT)")
    assert flags == CORE


@pytest.mark.parametrize("name", ["kubernetes", "compose", "systemd", "recipe", "engine", "dockerfile", "slurm"])
def test_the_environment_comes_along(name: str) -> None:
    assert read_command(FORMS[name], "0.5.9").env["NCCL_DEBUG"] == "INFO"


def test_what_a_text_says_of_the_machine_is_kept() -> None:
    assert (read_command(KUBERNETES).place.gpus, read_command(KUBERNETES).place.memory_bytes) == (4, 512 * GIB)
    assert read_command(COMPOSE).place.gpus == 4
    assert (read_command(SLURM).place.gpus, read_command(SLURM).place.memory_bytes) == (4, 256 * GIB)
    assert read_command(RECIPE).place.nodes == 2
    docker = read_command("docker run --gpus '\"device=1,2\"' --memory 64g lmsysorg/sglang:v0.5.9 python -m sglang.launch_server --model m")
    assert (docker.place.gpus, docker.place.memory_bytes, docker.image_release) == (2, 64 * GIB, "0.5.9")


def test_a_container_does_not_inherit_the_shell() -> None:
    text = "export NCCL_DEBUG=INFO HF_HOME=/h\ndocker run -e HF_HOME -e NCCL_P2P_DISABLE=1 lmsysorg/sglang python -m sglang.launch_server --model m"
    assert read_command(text).env == {"HF_HOME": "/h", "NCCL_P2P_DISABLE": "1"}


def test_kubernetes_fills_in_its_own_variables_before_the_shell() -> None:
    text = """
containers:
- image: lmsysorg/sglang:v0.5.6
  env:
  - {name: TP, value: "4"}
  command: ["/bin/sh", "-c"]
  args: ["python3 -m sglang.launch_server --model-path org/m --tp $(TP) --nnodes $TP --node-rank $(RANK)"]
"""
    assert read_command(text).flags == {**CORE, "--nnodes": 4, "--node-rank": "$(RANK)"}


def test_helm_arguments_join_the_named_values() -> None:
    text = "image: {repository: lmsysorg/sglang, tag: v0.5.6}\nextraArgs: [--tp=4]\nmodel: {path: org/m}\n"
    command = read_command(text)
    assert (command.flags, command.image_release) == (CORE, "0.5.6")


@pytest.mark.parametrize("prompt", ["$ ", "root@id:/dir# ", "(env) user@host:~$ ", "Singularity> ", "sgl ➜ ", "!", "**`"])
def test_prompts_are_no_words(prompt: str) -> None:
    assert read_command(f"{prompt}python -m sglang.launch_server --model-path org/m --tp 4").flags == CORE


def test_what_slurm_exports_is_environment() -> None:
    assert read_command("srun --export=ALL,NCCL_DEBUG=INFO python -m sglang.launch_server --model m").env == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("text", "repair"),
    [
        ("python -m sglang.launch_server\u00a0--model-path m", "a non-breaking space"),
        ("python -m sglang.launch_server \u2013model-path m", "a long dash instead of two hyphens"),
        ("python -m sglang.launch_server --model-path \u201cm\u201d", "a typographic quote"),
    ],
)
def test_what_a_word_processor_did_is_undone_and_said(text: str, repair: str) -> None:
    command = read_command(text)
    assert command.flags == {"--model-path": "m"}
    assert command.repairs == (repair,)


def test_typography_in_a_comment_is_no_repair() -> None:
    assert read_command("# it\u2019s mine\npython -m sglang.launch_server --model-path m").repairs == ()


def test_a_renamed_flag_is_read_as_the_releases_that_fit_prefer_it() -> None:
    old = read_command("python -m sglang.launch_server --model-path m --cuda-graph-max-bs 8")
    assert "--cuda-graph-max-bs" in old.flags  # most releases that accept it call it so
    new = read_command("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro --cuda-graph-max-bs 8")
    assert "--cuda-graph-max-bs-decode" in new.flags  # few releases that serve this model do


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 2000),
    st.integers(0, 40),
    st.sampled_from(["", "\x00", "{", "*a", "&a [*a]", "'", "\t", "- - - "]),
)
def test_damaged_documents_are_read_or_refused(name: str, at: int, cut: int, put: str) -> None:
    text = FORMS[name]
    with contextlib.suppress(CommandError):
        read_command(text[:at] + put + text[at + cut :], "0.5.9")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\n" + "".join(f"b{n}: &b{n} [{', '.join(['*' + ('a' if n == 0 else f'b{n - 1}')] * 9)}]\n" for n in range(9)),
        "a: &a\n  b: *a\n  command: [python, -m, sglang.launch_server, --model-path, m]\n",
        "[" * 5000 + "sglang",
        "x = " + "(" * 5000 + "sglang.Engine(",
        "import a\nx = " + "-" * 50_000 + "1\nEngine(model_path='m')",
        "import a\nEngine(model_path=" + "f(" * 3000 + ")" * 3000 + ")",
        "import a\nx = 10 ** 10 ** 10\nEngine(model_path='m', tp_size=x)",
        "import a\nx = 'a' * 10 ** 12\nEngine(model_path=x)",
    ],
    ids=["billion laughs", "a mapping in itself", "deep yaml", "deep python", "signs", "calls", "powers", "repetition"],
)
def test_hostile_documents_take_no_time(text: str) -> None:
    start = time.process_time()
    with contextlib.suppress(CommandError):
        read_command(text)
    assert time.process_time() - start < 5
