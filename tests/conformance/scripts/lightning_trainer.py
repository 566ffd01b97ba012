"""Lightning's Trainer: the backend is a word of its strategy.

    torchrun --nproc-per-node 2 lightning_trainer.py --backend shoal

Needs the package lightning. Logs a loss, a count of whole numbers and a metric of torchmetrics over all ranks. Prints what was logged.
"""

import argparse
import os
import tempfile

import lightning
import torch
import torchmetrics
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(250, 16, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 2))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(2)
        self.seen = 0

    def training_step(self, batch: list[Tensor]) -> Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.network(inputs), labels)
        self.seen += len(inputs)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        # Averaged over the ranks, although it is a whole number.
        self.log("seen", torch.tensor(self.seen), on_epoch=True, on_step=False, sync_dist=True, reduce_fx="max")
        self.log("steps", self.global_step, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        inputs, labels = batch
        self.accuracy(self.network(inputs), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy=DDPStrategy(process_group_backend=options.backend),
            max_epochs=EPOCHS,
            default_root_dir=folder,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Classifier()
        trainer.fit(model, DataLoader(dataset(), 16, shuffle=True), DataLoader(dataset(), 25))
        if trainer.is_global_zero:
            for name, value in sorted(trainer.callback_metrics.items()):
                print(f"{name}: {value.item():.5f}")
        everyone = trainer.strategy.reduce(sum(one.detach().norm() for one in model.parameters()), reduce_op="mean")
        trainer.print(f"norm of the parameters: {float(everyone):.5f}")


if __name__ == "__main__":
    main()
