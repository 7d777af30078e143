"""`before.py` on any number of ranks: the five changed lines are marked. The result does not depend on their number.

hvdtrain launch -np 2 -- python scripts/examples/after.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain

with hvdtrain.init(seed=1) as run:  # 1
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sync = hvdtrain.prepare(run, model, optimizer)  # 2
    batches = hvdtrain.loader(run, TensorDataset(images, labels), global_batch_size=64)  # 3

    for epoch in range(5):
        for batch in batches:
            x, y = batch.data
            loss = F.cross_entropy(model(x), y)
            result = sync.step(loss, batch)  # 4
        run.log.info("epoch %d: loss %.3f", epoch, result.loss)
    hvdtrain.save(run, "digits.pt", model)  # 5
