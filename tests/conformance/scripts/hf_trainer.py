"""The Trainer of transformers: the process group is made before the TrainingArguments, in one line.

    torchrun --nproc-per-node 2 hf_trainer.py --backend shoal

On GPUs ``TrainingArguments(ddp_backend="shoal")`` is enough. On CPUs Accelerate, which the Trainer stands on, refuses every name but
gloo and mpi, and takes a process group that is there already as it is. Needs the packages transformers and accelerate; the model, a
small one, begins with random numbers. Prints the losses that the Trainer logs.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import EvalPrediction

LENGTH, WORDS = 16, 64


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Texts in which each word is the one before plus a step."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        first, step = torch.randint(0, WORDS, (2, count, 1), generator=generator)
        self._texts = (first + step % 5 * torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._texts[index], "labels": self._texts[index]}


def accuracy(found: EvalPrediction) -> dict[str, float]:
    right = found.predictions[:, :-1].argmax(-1) == found.label_ids[:, 1:]
    return {"accuracy": float(right.mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=3e-3,
            logging_steps=4,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            model, arguments, train_dataset=Counting(250), eval_dataset=Counting(50), compute_metrics=accuracy
        )
        trainer.train()
        measured = trainer.evaluate()
    if dist.get_rank() == 0:
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        print("losses", *(f"{entry['loss']:.5f}" for entry in logged))
        print(f"evaluated: loss {measured['eval_loss']:.5f}, accuracy {measured['eval_accuracy']:.5f}")
    norms = [None] * dist.get_world_size()
    dist.all_gather_object(norms, f"{sum(float(one.detach().norm()) for one in model.parameters()):.5f}")
    if dist.get_rank() == 0:
        print("all ranks have the same parameters:", len(set(norms)) == 1, norms[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
