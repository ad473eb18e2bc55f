"""The installation: packages, kernels, number formats and device operators."""

from __future__ import annotations

from logforensics.rules import signatures
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, rule


@rule("LF305", "unsupported_quantization", "The number format is not supported for this model or card")
def unsupported_quantization(case: Case) -> Verdict | None:
    """The quantisation or number format does not go with the model, the checkpoint or the card.

    Why: FP8 needs compute capability 8.9, BF16 needs 8.0, NVFP4 Blackwell; a checkpoint has one format and the flag another; or the model's
    code reads parameters that a quantised layer stores under other names.
    Confirm: `type fp8e4nv not supported`, `Minimum capability: …`, `does not match the quantization method`, `…Linear' object has no attribute 'weight'`.
    Fix: a checkpoint in a format that the card and this model's code support; drop `--quantization` where the checkpoint says it itself.
    False friends: `no kernel image is available` is a build without this card (kernel_arch_mismatch); fallback warnings are resolved by SGLang itself.
    """
    return signatures.verdict(case, "unsupported_quantization")


@rule("LF306", "kernel_arch_mismatch", "Kernels were not built for this card")
def kernel_arch_mismatch(case: Case) -> Verdict | None:
    """The installed kernels hold no code for the compute capability of this card, or their compiler does not know it.

    Why: compiled packages contain code for the cards they were built for; new generations need new builds and a new CUDA toolkit.
    Confirm: `no kernel image is available`, `Value 'sm_…' is not defined for option 'gpu-name'`, `is only supported on …`, `out of resource: shared memory`.
    Fix: a build (sgl-kernel, flashinfer, torch) for this card, or a backend that runs on it.
    False friends: graph capture is often where it strikes, and SGLang prints its memory hints there; no memory or graph flag helps.
    """
    return signatures.verdict(case, "kernel_arch_mismatch")


@rule("LF307", "dependency_mismatch", "A package has the wrong version or is missing")
def dependency_mismatch(case: Case) -> Verdict | None:
    """A package under SGLang has the wrong version, is missing, or was built against another one.

    Why: each release is written for certain versions of sgl-kernel, flashinfer, transformers, torch and the CUDA driver.
    Confirm: `less than the minimum required version`, `cannot import name`, `No module named`, `undefined symbol`, `Config' object has no attribute`.
    Fix: the versions that the release pins, best from its own image; never files of two releases in one environment.
    False friends: `Ignore import error when loading sglang.srt.models.…` is printed by healthy starts for models that are not used.
    """
    return signatures.verdict(case, "dependency_mismatch")


@rule("LF314", "unsupported_op_on_device", "A device operator refuses a shape or type")
def unsupported_op_on_device(case: Case) -> Verdict | None:
    """An operator of the device (NPU, XPU, …) does not support a shape or type.

    Why: code written for CUDA meets a device whose operators cover fewer shapes, dimensions or types.
    Confirm: `call aclnn… failed, error code is 161…` with its `EZ…` reason, `Could not run '…' with arguments from the '…' backend`.
    Fix: run the operation elsewhere (image preprocessing on the CPU), or a build that avoids it.
    False friends: exit code -9 after a failed warm-up is SGLang ending its own tree; aclnn codes 507… are device faults.
    """
    return signatures.verdict(case, "unsupported_op_on_device")
