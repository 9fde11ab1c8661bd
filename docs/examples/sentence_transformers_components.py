"""Sentence embeddings of several sizes: the loss of each size is a task, from one pass through the model.

python docs/examples/sentence_transformers_components.py upgrad --steps 100
"""

import argparse
import random
import tempfile

import tokenizers
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments, losses
from sentence_transformers.sentence_transformer.modules import Dense, StaticEmbedding

import gradhomog
from gradhomog_adapters.sentence_transformers import HomogenizedSentenceTransformerTrainer

TOPICS = [["cat", "dog", "bird", "fish"], ["rice", "bread", "soup", "cheese"], ["rain", "snow", "wind", "sun"]]


class EachSize(torch.nn.Module):
    """The terms of `MatryoshkaLoss`, by name: the loss of the first d numbers of the embeddings, for several d."""

    def __init__(self, model, loss, sizes):
        super().__init__()
        self.model, self.loss, self.sizes = model, loss, sizes

    def forward(self, features, labels):
        embeddings = [self.model(column)["sentence_embedding"] for column in features]
        shortened = {f"first {size}": [each[:, :size] for each in embeddings] for size in self.sizes}
        return {name: self.loss.compute_loss_from_embeddings(parts, labels) for name, parts in shortened.items()}


def small_model():
    words = {word: index for index, word in enumerate(["[UNK]", *(word for topic in TOPICS for word in topic)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32), Dense(32, 16)], device="cpu")


def questions(count, seed):
    """Questions with answers of the same topic."""
    draw = random.Random(seed)
    topics = [draw.choice(TOPICS) for _ in range(count)]
    return Dataset.from_list([
        {"question": " ".join(draw.choices(words, k=4)), "answer": " ".join(draw.choices(words, k=4))}
        for words in topics
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="upgrad")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model, pipe = small_model(), gradhomog.pipeline(options.homogenizers)
        loss = EachSize(model, losses.MultipleNegativesRankingLoss(model), [16, 8, 4])
        quiet = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_steps": 50}
        args = SentenceTransformerTrainingArguments(folder, max_steps=options.steps, learning_rate=1e-3, **quiet)
        data = questions(500, 1)
        HomogenizedSentenceTransformerTrainer(model, args, data, loss=loss, homogenizers=pipe).train()


if __name__ == "__main__":
    main()
