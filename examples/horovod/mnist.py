"""A script of Horovod's kind: a small convolutional network learns handwritten digits, those that come with scikit-learn.

    shoal run -n 4 examples/horovod/mnist.py --epochs 10

Only the import differs from a script for Horovod. Needs the packages torch and scikit-learn.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shoal.horovod.torch as hvd


class Net(nn.Module):
    """For images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def load() -> tuple[TensorDataset, TensorDataset]:
    """For training, and for testing: every fifth image."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    tests = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~tests], labels[~tests]), TensorDataset(images[tests], labels[tests])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--use-adasum", action="store_true", help="Adasum combines the ranks' steps")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)

    train_set, test_set = load()
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    test_loader = DataLoader(test_set, batch_size=256, sampler=test_sampler)

    model = Net()
    # With more ranks the batch of all is larger, and so may the steps be. Adasum finds their length itself.
    lr = args.lr if args.use_adasum else args.lr * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in train_loader:
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()
        loss, accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test loss {loss:.4f}, accuracy {accuracy:.2%}", flush=True)


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Loss and accuracy over the images of all ranks."""
    model.eval()
    sums = torch.zeros(3)
    for images, labels in loader:
        output = model(images)
        loss = F.nll_loss(output, labels, reduction="sum").item()
        sums += torch.tensor([loss, (output.argmax(1) == labels).sum().item(), len(labels)])
    loss, right, images_of_all = hvd.allreduce(sums, op=hvd.Sum, name="test").tolist()
    return loss / images_of_all, right / images_of_all


if __name__ == "__main__":
    main()
