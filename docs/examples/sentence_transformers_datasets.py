"""Sentence embeddings from two datasets, one in each batch, with `tracked` gradients of both.

python docs/examples/sentence_transformers_datasets.py "tracked(method='upgrad')" --steps 100
"""

import argparse
import random
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments, losses
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

import gradhomog
from gradhomog_adapters.sentence_transformers import HomogenizedSentenceTransformerTrainer

TOPICS = [["cat", "dog", "bird", "fish"], ["rice", "bread", "soup", "cheese"], ["rain", "snow", "wind", "sun"]]


def small_model(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(word for topic in TOPICS for word in topic)]
    BertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return SentenceTransformer(modules=[Transformer(folder), Pooling(32)], device="cpu")


def datasets(count, seed):
    """Questions with answers of the same topic; pairs with the score 1 for the same topic, and 0 for others."""
    draw = random.Random(seed)
    texts = [[" ".join(draw.choices(words, k=4)) for _ in range(count)] for words in TOPICS]
    pairs = [(draw.randrange(3), draw.randrange(3)) for _ in range(count)]
    answers = [{"question": draw.choice(texts[i]), "answer": draw.choice(texts[i])} for i, _ in pairs]
    scores = [{"a": draw.choice(texts[i]), "b": draw.choice(texts[j]), "score": float(i == j)} for i, j in pairs]
    return {"answers": Dataset.from_list(answers), "scores": Dataset.from_list(scores)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="tracked(method='upgrad')")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model, pipe = small_model(folder), gradhomog.pipeline(options.homogenizers)
        quiet = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_steps": 50}
        training = {"max_steps": options.steps, "learning_rate": 1e-3, "adam_beta1": 0.0}
        args = SentenceTransformerTrainingArguments(folder, **training, **quiet)
        loss = {"answers": losses.MultipleNegativesRankingLoss(model), "scores": losses.CosineSimilarityLoss(model)}
        data = {"train_dataset": datasets(500, 1), "eval_dataset": datasets(100, 2)}
        trainer = HomogenizedSentenceTransformerTrainer(model, args, loss=loss, homogenizers=pipe, **data)
        trainer.train()
        trainer.evaluate()  # prints eval_answers_loss and eval_scores_loss


if __name__ == "__main__":
    main()
