"""A small Llama trained by TRL's GRPO with the gradients of two rewards homogenized: short texts, and listed words.

python docs/examples/grpo_two_rewards.py upgrad --steps 60
python docs/examples/grpo_two_rewards.py auto --beta 0.04 --regularizers tasks
"""

import argparse
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

import gradhomog
from gradhomog_adapters.trl import HomogenizedGRPOTrainer

WORDS = [f"w{number}" for number in range(28)]
PROMPTS = Dataset.from_dict({"prompt": [f"{first} {second}" for first in WORDS for second in WORDS]})
LENGTHS = {"per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 8}
QUIET = {"report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False, "disable_tqdm": True}


def tokenizer():
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", pad_token="<pad>", eos_token="<eos>")


def model(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=31, pad_token_id=0, eos_token_id=1, bos_token_id=None, **sizes))


def short(completions, **_):
    return [1 - len(text.split()) / 8 for text in completions]


def covers(completions, **_):
    return [len({*text.split()} & {*WORDS[:4]}) / 4 for text in completions]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="upgrad")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--beta", type=float, default=0.0, help="coefficient of the KL divergence from the start")
    parser.add_argument("--regularizers", default="plain", help="plain or tasks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model().save_pretrained(folder)  # TRL loads the reference of the KL divergence from there
        args = GRPOConfig(
            folder, max_steps=options.steps, beta=options.beta, learning_rate=3e-3, logging_steps=20, **LENGTHS, **QUIET
        )
        HomogenizedGRPOTrainer(
            LlamaForCausalLM.from_pretrained(folder), [short, covers], args, train_dataset=PROMPTS,
            processing_class=tokenizer(), homogenizers=gradhomog.pipeline(options.homogenizers),
            regularizers=options.regularizers,
        ).train()  # fmt: skip


if __name__ == "__main__":
    main()
