"""A BERT encoder with two heads, trained by Transformers with the gradients of both losses homogenized.

python docs/examples/transformers_multitask.py upgrad --steps 150
"""

import argparse
import tempfile

import torch
from torch import nn
from transformers import BertConfig, BertModel, TrainingArguments

import gradhomog
from gradhomog_adapters.transformers import HomogenizedTrainer


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        self.encoder = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
        self.parity, self.total = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, input_ids, labels=None, totals=None):
        features = self.encoder(input_ids).last_hidden_state[:, 0]
        return {"parity": self.parity(features), "total": self.total(features)[:, 0]}


class TwoTasks(HomogenizedTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        parity = nn.functional.cross_entropy(outputs["parity"], inputs["labels"])
        total = nn.functional.mse_loss(outputs["total"], inputs["totals"])
        loss = self.homogenized_loss({"parity": parity, "total": total}, model)  # was: parity + total
        return (loss, outputs) if return_outputs else loss


def examples(count, seed):
    """Eight numbers below 50: is the first one odd, and how far is their sum from its mean?"""
    numbers = torch.randint(50, (count, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int(row[0] % 2), "totals": float(row.sum() - 196) / 20} for row in numbers]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="upgrad")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    pipe = gradhomog.pipeline(options.homogenizers)
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"report_to": [], "save_strategy": "no", "logging_steps": 50, "use_cpu": True, "disable_tqdm": True}
        args = TrainingArguments(folder, max_steps=options.steps, learning_rate=2e-3, **quiet)
        trainer = TwoTasks(args=args, model_init=TwoHeads, train_dataset=examples(2000, 1), homogenizers=pipe)
        trainer.train()
        trainer.evaluate(examples(500, 2))  # prints eval_parity_loss and eval_total_loss


if __name__ == "__main__":
    main()
