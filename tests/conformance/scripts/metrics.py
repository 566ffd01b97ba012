"""torchmetrics: metrics of the samples of all ranks, which are gathered or summed when they are computed.

    torchrun --nproc-per-node 3 metrics.py --backend shoal

Needs the package torchmetrics. Prints each metric; ranks have different numbers of samples.
"""

import argparse

import torch
import torch.distributed as dist
from torchmetrics import CatMetric, MaxMetric, MeanMetric, MetricCollection, MinMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

CLASSES = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    classification = MetricCollection(
        [MulticlassAccuracy(CLASSES), MulticlassAUROC(CLASSES), MulticlassConfusionMatrix(CLASSES)]
    )
    regression = MetricCollection([PearsonCorrCoef(), SpearmanCorrCoef()])
    plain = MetricCollection([MeanMetric(), SumMetric(), MaxMetric(), MinMetric(), CatMetric()])
    for batch in range(2 + rank):
        guesses = torch.randn(4, CLASSES, generator=generator)
        labels = torch.randint(0, CLASSES, (4,), generator=generator)
        classification.update(guesses, labels)
        regression.update(guesses[:, 0], guesses[:, 0] + guesses[:, 1])
        plain.update(torch.arange(3.0) + batch)
    for metrics in (classification, regression, plain):
        for name, value in metrics.compute().items():
            if rank == 0:
                print(name, *(f"{one:.5f}" for one in value.flatten().tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
