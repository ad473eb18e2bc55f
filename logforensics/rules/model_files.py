"""What is to be served: the model's files, its template, its code, and the hub they come from."""

from __future__ import annotations

from logforensics.rules import signatures
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, rule


@rule("LF308", "model_not_found", "The model, its tokenizer or a revision cannot be found or read")
def model_not_found(case: Case) -> Verdict | None:
    """The model, its tokenizer or the revision cannot be found or read.

    Why: a mistyped or unmounted path is taken for a repository name; a gated repository needs a token; a download stopped half-way.
    Confirm: `Repo id must …` or `is not a local folder and is not a valid model identifier` (path), `401`/`gated` (access), `does not appear to
    have a file named` or `Error while deserializing header` (incomplete files).
    Fix: the path as the server's process sees it, inside the container and on every node; a token; a complete copy.
    False friends: `Failed to load generation config … does not appear to have a file named generation_config.json` is a warning of healthy starts.
    """
    return signatures.verdict(case, "model_not_found")


@rule("LF309", "chat_template_missing", "The tokenizer has no usable chat template")
def chat_template_missing(case: Case) -> Verdict | None:
    """Chat requests cannot be turned into prompts: no usable chat template.

    Why: base models have none, incomplete copies lack `chat_template.jinja`, and `--chat-template` may name a file that does not exist here.
    Confirm: `tokenizer.chat_template is not set`, or `is not a built-in template name or a valid chat template file path`.
    Fix: `--chat-template`, or the complete instruction-tuned model.
    False friends: `No chat template found, defaulting to 'string' content format` only describes; completion requests need no template.
    """
    return signatures.verdict(case, "chat_template_missing")


@rule("LF312", "trust_remote_code_required", "The model has code of its own, and --trust-remote-code is missing")
def trust_remote_code_required(case: Case) -> Verdict | None:
    """The model's repository has code of its own, and the flag that allows running it is missing.

    Why: configuration, tokenizer or processor are Python files of the repository; transformers asks before it runs them.
    Confirm: `contains custom code which must be executed`, `trust_remote_code=False` in server_args.
    Fix: `--trust-remote-code`, after a look at the code.
    False friends: `still TokenizersBackend after retries with --trust-remote-code` is a warning.
    """
    return signatures.verdict(case, "trust_remote_code_required")


@rule("LF313", "hub_unreachable", "The model hub cannot be reached")
def hub_unreachable(case: Case) -> Verdict | None:
    """The start is blocked by network errors to the model hub.

    Why: even with cached weights transformers asks the hub for file lists, unless it is told to stay offline.
    Confirm: `couldn't connect to`, `Max retries exceeded`, `LocalEntryNotFoundError`, `OfflineModeIsEnabled`.
    Fix: HF_HUB_OFFLINE=1 where everything is cached, a local `--model-path`, or a mirror or proxy.
    False friends: `sending unauthenticated requests to the HF Hub` is a hint; a 401 or 404 means that the hub was reached (model_not_found).
    """
    return signatures.verdict(case, "hub_unreachable")
