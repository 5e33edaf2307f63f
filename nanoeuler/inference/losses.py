"""How well a decoder predicts a text: to see what rounded weights cost."""

from __future__ import annotations

import numpy as np

from nanoeuler.inference.decoder import Decoder

ROWS = 64  # tokens read at a time: their logits are held


class DecoderLosses:
    """A decoder in the place of a model in :func:`nanoeuler.training.evaluate.evaluate`."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def losses(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Cross-entropy of each token (B, T), 0 where the target is -1."""
        out = np.zeros(x.shape)
        for row, (tokens, targets) in enumerate(zip(x.tolist(), y.tolist())):
            for at in range(0, len(tokens), ROWS):
                part = tokens[at : at + ROWS]
                if at == 0:
                    z = self.decoder.prefill(0, part[:1])[None]
                    z = np.concatenate([z, self.decoder.extend(0, part[1:])]) if len(part) > 1 else z
                else:
                    z = self.decoder.extend(0, part)
                z = z.astype(np.float64)
                z -= z.max(axis=1, keepdims=True)
                total = np.log(np.exp(z).sum(axis=1))
                for i, target in enumerate(targets[at : at + ROWS]):
                    out[row, at + i] = total[i] - z[i, target] if target != -1 else 0.0
        return out
