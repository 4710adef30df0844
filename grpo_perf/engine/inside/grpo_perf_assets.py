"""Builds model, tokenizer and prompts of a workload, under the measured interpreter. No network.

    python grpo_perf_assets.py SPEC.json OUT      SPEC: see grpo_perf/engine/assets.py

Everything is drawn from a fixed seed: the same SPEC gives the same prompts, tokenizer and weights.
Exit code 3 and one line on stderr: something that the person has to provide is missing.
"""

import base64
import importlib.util
import json
import os
import random
import shutil
import sys

NEEDS_PERSON = 3
NUM_VAL_ROWS = 64
BYTE_BPE_VOCAB = 512
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENIZER_FILES = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template")
# Split pattern of Qwen's tokenizer (Qwen2 tokenizer.json, pre_tokenizer).
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)


class MissingInputError(Exception):
    """Something that only the person can provide; the message names the next command."""


def make_rows(num_rows, split, seed, min_terms, max_terms):
    """Prompts that add up numbers, in verl's columns; their lengths differ, as real ones do."""
    rng = random.Random(f"{seed}/{split}")
    rows = []
    for index in range(num_rows):
        numbers = [rng.randint(1, 999) for _ in range(rng.randint(min_terms, max_terms))]
        question = "Add up these numbers, step by step, and end with '#### answer': " + " + ".join(map(str, numbers))
        rows.append(
            {
                "data_source": "grpo-perf/addition",
                "prompt": [{"role": "user", "content": question}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(sum(numbers))},
                "extra_info": {"split": split, "index": index},
            }
        )
    return rows


def write_parquet(rows, path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def wrap_tokenizer(tokenizer):
    """A transformers tokenizer with Qwen's chat template and special tokens."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=32768
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def train_byte_bpe(rows, out):
    """A byte-level BPE of a few hundred tokens, trained on the prompts themselves."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BYTE_BPE_VOCAB,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = [row["prompt"][0]["content"] for row in rows] + ["user", "assistant", "system"]
    tokenizer.train_from_iterator(corpus, trainer)
    wrap_tokenizer(tokenizer).save_pretrained(out)


def find_qwen_ranks():
    """Path of qwen.tiktoken as the package dashscope ships it."""
    spec = importlib.util.find_spec("dashscope")
    folder = os.path.dirname(spec.origin) if spec and spec.origin else None
    path = os.path.join(folder, "resources", "qwen.tiktoken") if folder else None
    if path is None or not os.path.exists(path):
        raise MissingInputError(
            f"the Qwen vocabulary is missing: {sys.executable} has no package dashscope, which ships it. "
            f"Install it: {sys.executable} -m pip install --no-deps dashscope==2.0.2, "
            "or name a folder with a Qwen tokenizer: GRPO_PERF_TOKENIZER=PATH"
        )
    return path


def bytes_to_unicode():
    """GPT-2's printable stand-in for each byte (openai/gpt-2, encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    codes = printable[:]
    for byte in range(256):
        if byte not in printable:
            printable.append(byte)
            codes.append(256 + len(printable) - 189)
    return dict(zip(printable, map(chr, codes)))


def split_by_rank(token, rank, ranks):
    """The two parts that BPE merged into `token`: apply all merges of a lower rank."""
    parts = [bytes([byte]) for byte in token]
    while True:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        best, at = min(pairs, default=(rank, 0))
        if best >= rank:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def convert_qwen(path, out):
    """qwen.tiktoken as a transformers tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    with open(path, "rb") as file:
        pairs = (line.split() for line in file if line.strip())
        ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    names = bytes_to_unicode()

    def spell(token):
        return "".join(names[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        parts = split_by_rank(token, rank, ranks) if len(token) > 1 else ()
        if len(parts) == 2:
            merges.append((spell(parts[0]), spell(parts[1])))
    vocab = {spell(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    wrap_tokenizer(tokenizer).save_pretrained(out)


def write_tokenizer(spec, rows, out):
    """Tokenizer files of the workload's kind."""
    folder = spec.get("tokenizer_path")
    if spec["model"]["tokenizer"] == "byte-bpe":
        train_byte_bpe(rows, out)
    elif folder:
        for name in sorted(os.listdir(folder)):
            if name.startswith(TOKENIZER_FILES):  # and nothing of a checkpoint that may lie beside them
                shutil.copy(os.path.join(folder, name), out)
    else:
        convert_qwen(find_qwen_ranks(), out)


def write_model(shape, out):
    """A Qwen2 checkpoint with random weights for the tokenizer that lies in `out`."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(out)
    vocab_size = shape["vocab_size"] or len(tokenizer)
    if vocab_size < len(tokenizer):
        raise MissingInputError(
            f"model.vocab_size {vocab_size} is less than the tokenizer's {len(tokenizer)} tokens. "
            "Raise it in the workload."
        )
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["num_hidden_layers"],
        num_attention_heads=shape["num_attention_heads"],
        num_key_value_heads=shape["num_key_value_heads"],
        tie_word_embeddings=shape["tie_word_embeddings"],
        initializer_range=shape["initializer_range"],
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen2ForCausalLM"],
        torch_dtype=shape["dtype"],
    )
    dtype = getattr(torch, shape["dtype"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(shape["seed"])
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(dtype).save_pretrained(out, max_shard_size="20GB")


def build(spec, out):
    """Everything SPEC asks for, in the folder `out`."""
    data = spec["data"]
    terms = (data["seed"], data["min_terms"], data["max_terms"])
    rows = make_rows(data["num_rows"], "train", *terms)
    if data["train"]:
        write_parquet(rows, os.path.join(out, "train.parquet"))
    if data["val"]:
        write_parquet(make_rows(NUM_VAL_ROWS, "val", *terms), os.path.join(out, "val.parquet"))
    if spec["model"] is not None:
        model = os.path.join(out, "model")
        os.makedirs(model, exist_ok=True)
        write_tokenizer(spec, rows, model)
        write_model(spec["model"], model)


def main(argv):
    with open(argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    try:
        build(spec, argv[2])
    except MissingInputError as error:
        print(error, file=sys.stderr)
        return NEEDS_PERSON
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
